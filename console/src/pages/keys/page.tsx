// Keys: who may read, list, write, and more.
import { useEffect, useState } from "preact/hooks";
import { session } from "../../app/session";
import { time } from "../../data/format";
import { send } from "../../data/http";
import type { KeyEntry, KeyList, NewSecret } from "../../data/types";
import { T } from "../../texts";
import { ActionDialog } from "../../ui/dialog";
import { Empty, Fault, Panel, Scroll } from "../../ui/parts";
import { usePolled } from "../../ui/polled";
import { say } from "../../ui/toasts";
import { CreateKey } from "./create";
import { explain } from "./grants";
import { SecretDialog } from "./secret";

type Open = { kind: "create" } | { kind: "revoke" | "rotate"; key: KeyEntry } | { kind: "secret"; made: NewSecret };

export function Keys() {
  const admin = session.value?.may.admin ?? false;
  const polled = usePolled<KeyList>(admin ? "/api/keys" : null, 5000);
  const [open, setOpen] = useState<Open | null>(null);
  const close = () => setOpen(null);
  const list = polled.value;
  const done = (made: NewSecret | null) => {
    polled.again();
    setOpen(made ? { kind: "secret", made } : null);
  };
  if (!admin) {
    return (
      <>
        <h1>{T.keys.title}</h1>
        <Empty title={T.keys.notAdmin}>{T.keys.notAdminAdvice}</Empty>
      </>
    );
  }
  return (
    <>
      <h1>{T.keys.title}</h1>
      <Panel
        id="keys"
        title={T.keys.list}
        wide
        aside={
          <button type="button" class="primary" disabled={!list?.file} onClick={() => setOpen({ kind: "create" })}>
            {T.keys.create}
          </button>
        }
      >
        <Fault words={polled.words} retry={polled.again} />
        {list && !list.file ? <Empty title={T.keys.noFile}>{T.keys.noFileAdvice}</Empty> : null}
        {list?.file && list.keys.length === 0 ? <Empty title={T.keys.none}>{T.keys.noneAdvice}</Empty> : null}
        {list && list.keys.length > 0 ? (
          <Scroll label={T.keys.list}>
            <table>
              <thead>
                <tr>
                  <th scope="col">{T.keys.name}</th>
                  <th scope="col">{T.keys.id}</th>
                  <th scope="col">{T.keys.may}</th>
                  <th scope="col">{T.keys.expires}</th>
                  <th scope="col" class="actions">{T.actions}</th>
                </tr>
              </thead>
              <tbody>
                {list.keys.map((key) => (
                  <KeyRow key={key.id} of={key} onRotate={() => setOpen({ kind: "rotate", key })} onRevoke={() => setOpen({ kind: "revoke", key })} />
                ))}
              </tbody>
            </table>
          </Scroll>
        ) : null}
        {list?.file ? <p class="hint">{T.keys.inFile(list.file)}</p> : null}
      </Panel>
      {open?.kind === "create" ? <CreateKey onClose={close} onDone={done} /> : null}
      {open?.kind === "secret" ? <SecretDialog made={open.made} onClose={close} /> : null}
      {open?.kind === "revoke" ? (
        <ActionDialog
          title={T.keys.revokeTitle(open.key.name || open.key.id)}
          button={T.keys.revoke}
          danger
          onClose={close}
          run={async () => {
            await send("DELETE", `/api/keys/${encodeURIComponent(open.key.id)}`);
            say(T.keys.revoked(open.key.name || open.key.id));
            done(null);
          }}
        >
          <p>{T.keys.revokeText}</p>
          {open.key.is_this_session ? <p class="warn">{T.keys.revokeOwn}</p> : null}
        </ActionDialog>
      ) : null}
      {open?.kind === "rotate" ? (
        <ActionDialog
          title={T.keys.rotateTitle(open.key.name || open.key.id)}
          button={T.keys.rotate}
          onClose={close}
          run={async () => {
            done(await send<NewSecret>("POST", `/api/keys/${encodeURIComponent(open.key.id)}/rotate`));
            return false;
          }}
        >
          <p>{T.keys.rotateText}</p>
          {open.key.is_this_session ? <p class="warn">{T.keys.rotateOwn}</p> : null}
        </ActionDialog>
      ) : null}
    </>
  );
}

function KeyRow(props: { of: KeyEntry; onRotate: () => void; onRevoke: () => void }) {
  const { of } = props;
  const [sentences, setSentences] = useState<string[] | null>(null);
  const grants = of.grants.join("\n");
  useEffect(() => {
    let left = false;
    explain(of.grants)
      .then((answer) => !left && setSentences(answer))
      .catch(() => !left && setSentences(null));
    return () => {
      left = true;
    };
  }, [grants]);
  const name = of.name || of.id;
  return (
    <tr>
      <th scope="row">
        {of.name || T.keys.unnamed}
        {of.is_this_session ? <span class="badge">{T.keys.thisSession}</span> : null}
      </th>
      <td class="mono">{of.id}</td>
      <td class="sentences">
        {of.grants.length === 0 ? T.keys.nothing : null}
        {(sentences ?? of.grants).map((sentence, index) => (
          <span key={index} title={of.grants[index] ?? ""}>
            {sentence}
          </span>
        ))}
      </td>
      <td>
        {of.expires_ms ? time(of.expires_ms) : T.keys.never}
        {of.rotated_until_ms && of.rotated_until_ms > Date.now() ? <span class="note">{T.keys.oldUntil(time(of.rotated_until_ms))}</span> : null}
      </td>
      <td class="actions">
        <button type="button" aria-label={T.keys.rotateTitle(name)} onClick={props.onRotate}>
          {T.keys.rotate}
        </button>{" "}
        <button type="button" class="danger" aria-label={T.keys.revokeTitle(name)} onClick={props.onRevoke}>
          {T.keys.revoke}
        </button>
      </td>
    </tr>
  );
}
