// The form of a key or a token.
import { useState } from "preact/hooks";
import { T } from "../texts";
import { Said } from "../ui/parts";
import { notice, signIn } from "./session";

export function SignIn() {
  const [id, setId] = useState("");
  const [secret, setSecret] = useState("");
  const [words, setWords] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setWords(await signIn(id.trim(), secret.trim()));
    setBusy(false);
  };
  return (
    <main class="sign-in" id="main">
      <form onSubmit={(event) => void submit(event)}>
        <h1>{T.signIn.title}</h1>
        {notice.value ? <p role="status">{notice.value}</p> : null}
        <label class="field">
          <span>{T.signIn.id}</span>
          <input autoFocus value={id} onInput={(event) => setId(event.currentTarget.value)} autocomplete="username" spellcheck={false} autocapitalize="off" />
        </label>
        <label class="field">
          <span>{T.signIn.secret}</span>
          <input type="password" required value={secret} onInput={(event) => setSecret(event.currentTarget.value)} autocomplete="current-password" />
        </label>
        {words ? (
          <div class="fault" role="alert">
            <Said text={words} />
          </div>
        ) : null}
        <button type="submit" class="primary" disabled={busy || !secret}>
          {T.signIn.button}
        </button>
        <p class="hint">
          <Said text={T.signIn.hint} />
        </p>
      </form>
    </main>
  );
}
