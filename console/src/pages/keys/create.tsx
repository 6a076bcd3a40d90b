// A new key: its name, its grants, and the server's plain sentence of each.
import { useEffect, useState } from "preact/hooks";
import { send, wordsOf } from "../../data/http";
import type { NewSecret } from "../../data/types";
import { T } from "../../texts";
import { ActionDialog } from "../../ui/dialog";
import { ACTIONS, type Action, type Grant, explain, newGrant, write } from "./grants";

const TIMES = [0, 1, 7, 30, 90, 365];
const DAY_MS = 86_400_000;

export function CreateKey(props: { onClose: () => void; onDone: (made: NewSecret | null) => void }) {
  const [name, setName] = useState("");
  const [days, setDays] = useState(90);
  const [grants, setGrants] = useState<Grant[]>([newGrant()]);
  const [sentences, setSentences] = useState<string[]>([]);
  const [words, setWords] = useState("");
  const written = grants.filter((grant) => grant.actions.size > 0).map(write);
  const all = written.join("\n");

  useEffect(() => {
    let left = false;
    const timer = setTimeout(() => {
      explain(written)
        .then((answer) => {
          if (left) return;
          setSentences(answer);
          setWords("");
        })
        .catch((error: unknown) => {
          if (left) return;
          setSentences([]);
          setWords(wordsOf(error));
        });
    }, 200);
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [all]);

  const change = (id: number, how: (grant: Grant) => Grant) => setGrants(grants.map((grant) => (grant.id === id ? how(grant) : grant)));
  return (
    <ActionDialog
      title={T.keys.create}
      button={T.keys.make}
      disabled={!name || written.length === 0 || words !== ""}
      onClose={props.onClose}
      run={async () => {
        const expires_ms = days > 0 ? Date.now() + days * DAY_MS : null;
        props.onDone(await send<NewSecret>("POST", "/api/keys", { name, grants: written, expires_ms }));
        return false;
      }}
    >
      <div class="pair">
        <label class="field">
          <span>{T.keys.name}</span>
          <input autoFocus value={name} onInput={(event) => setName(event.currentTarget.value)} autocomplete="off" spellcheck={false} />
        </label>
        <label class="field">
          <span>{T.keys.expires}</span>
          <select value={days} onChange={(event) => setDays(Number(event.currentTarget.value))}>
            {TIMES.map((choice, index) => (
              <option key={choice} value={choice}>
                {T.keys.times[index]}
              </option>
            ))}
          </select>
        </label>
      </div>
      {grants.map((grant, index) => (
        <GrantEditor
          key={grant.id}
          grant={grant}
          number={index + 1}
          onChange={(how) => change(grant.id, how)}
          onRemove={grants.length > 1 ? () => setGrants(grants.filter((one) => one !== grant)) : null}
        />
      ))}
      <button type="button" class="link" onClick={() => setGrants([...grants, newGrant()])}>
        {T.keys.addGrant}
      </button>
      <div class="explained" role="status" aria-live="polite">
        {words ? <p class="warn">{words}</p> : null}
        {sentences.length > 0 ? (
          <>
            <p>{T.keys.keyMay}</p>
            <ul>
              {sentences.map((sentence, index) => (
                <li key={index}>{sentence}</li>
              ))}
            </ul>
          </>
        ) : null}
        {written.length === 0 ? <p>{T.keys.nothing}</p> : null}
      </div>
    </ActionDialog>
  );
}

function GrantEditor(props: { grant: Grant; number: number; onChange: (how: (grant: Grant) => Grant) => void; onRemove: (() => void) | null }) {
  const { grant } = props;
  const toggle = (action: Action) =>
    props.onChange((old) => {
      const actions = new Set(old.actions);
      if (!actions.delete(action)) actions.add(action);
      return { ...old, actions };
    });
  return (
    <fieldset class="grant">
      <legend>{T.keys.grant(props.number)}</legend>
      <div class="checks">
        {ACTIONS.map((action) => (
          <label key={action} class="check">
            <input type="checkbox" checked={grant.actions.has(action)} onChange={() => toggle(action)} /> {action}
          </label>
        ))}
        {props.onRemove ? (
          <button type="button" class="quiet" aria-label={T.keys.removeGrant(props.number)} onClick={props.onRemove}>
            ×
          </button>
        ) : null}
      </div>
      <div class="pair">
        <label class="field">
          <span>{T.keys.bucket}</span>
          <input value={grant.bucket} placeholder="*" spellcheck={false} onInput={(event) => { const bucket = event.currentTarget.value; props.onChange((old) => ({ ...old, bucket })); }} />
        </label>
        <label class="field">
          <span>{T.keys.prefix}</span>
          <input value={grant.prefix} placeholder={T.keys.allKeys} spellcheck={false} onInput={(event) => { const prefix = event.currentTarget.value; props.onChange((old) => ({ ...old, prefix })); }} />
        </label>
      </div>
    </fieldset>
  );
}
