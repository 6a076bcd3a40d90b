// Dialogs about objects: delete, copy, link, archive.
import { useEffect, useState } from "preact/hooks";
import { bytes, count, time } from "../../data/format";
import { send, wordsOf } from "../../data/http";
import { type Entry, below, copy, exists } from "../../data/s3";
import { T } from "../../texts";
import { ActionDialog, CopyField, Dialog } from "../../ui/dialog";
import { Fault } from "../../ui/parts";
import { say } from "../../ui/toasts";
import { deleteLater } from "./deletes";
import { arrived } from "./upload/queue";

export function DeleteDialog(props: { bucket: string; keys: string[]; prefixes: string[]; onClose: () => void; onDone: () => void }) {
  const [found, setFound] = useState<{ objects: number; bytes: number; ready: boolean }>({ objects: 0, bytes: 0, ready: props.prefixes.length === 0 });
  const [words, setWords] = useState("");
  useEffect(() => {
    const leave = new AbortController();
    const add = async () => {
      let objects = 0;
      let size = 0;
      for (const prefix of props.prefixes) {
        for await (const page of below(props.bucket, prefix, leave.signal)) {
          objects += page.length;
          size += page.reduce((sum, entry) => sum + entry.size, 0);
          setFound({ objects, bytes: size, ready: false });
        }
      }
      setFound({ objects, bytes: size, ready: true });
    };
    if (props.prefixes.length > 0) {
      add().catch((error: unknown) => {
        if (!leave.signal.aborted) setWords(wordsOf(error));
      });
    }
    return () => leave.abort();
  }, []);
  const names = [...props.prefixes, ...props.keys];
  return (
    <ActionDialog
      title={T.objects.deleteTitle(props.keys.length, props.prefixes.length)}
      button={T.objects.remove}
      danger
      disabled={!found.ready}
      onClose={props.onClose}
      run={async () => {
        deleteLater(props.bucket, props.keys, props.prefixes);
        props.onDone();
      }}
    >
      <ul class="names">
        {names.slice(0, 8).map((name) => (
          <li key={name}>{name}</li>
        ))}
      </ul>
      {names.length > 8 ? <p>{T.objects.andMore(names.length - 8)}</p> : null}
      {props.prefixes.length > 0 ? <p aria-live="polite">{T.objects.below(count(found.objects), bytes(found.bytes), found.ready)}</p> : null}
      <Fault words={words} />
      <p class="hint">{T.objects.deleteText}</p>
    </ActionDialog>
  );
}

export function CopyDialog(props: { bucket: string; entry: Entry; onClose: () => void }) {
  const [bucket, setBucket] = useState(props.bucket);
  const [key, setKey] = useState(props.entry.key);
  const [asked, setAsked] = useState(false);
  const same = bucket === props.bucket && key === props.entry.key;
  return (
    <ActionDialog
      title={T.objects.copyTitle}
      button={asked ? T.objects.replace : T.objects.copyTo}
      danger={asked}
      disabled={!bucket || !key || same}
      onClose={props.onClose}
      run={async () => {
        if (!asked && (await exists(bucket, key))) {
          setAsked(true);
          return false;
        }
        await copy(props.bucket, props.entry.key, bucket, key);
        say(T.objects.copied(bucket, key));
        arrived.value += 1;
        return true;
      }}
    >
      <label class="field">
        <span>{T.objects.toBucket}</span>
        <input value={bucket} onInput={(event) => (setBucket(event.currentTarget.value), setAsked(false))} />
      </label>
      <label class="field">
        <span>{T.objects.toKey}</span>
        <input value={key} onInput={(event) => (setKey(event.currentTarget.value), setAsked(false))} />
      </label>
      {asked ? <p role="alert">{T.objects.present}</p> : null}
    </ActionDialog>
  );
}

const TIMES = [600, 3600, 86400, 604800];

export function LinkDialog(props: { bucket: string; entry: Entry; onClose: () => void }) {
  const [seconds, setSeconds] = useState(3600);
  const [made, setMade] = useState<{ url: string; until: number } | null>(null);
  if (made) {
    return (
      <Dialog title={T.objects.linkTitle} onClose={props.onClose}>
        <CopyField label={T.objects.linkField} value={made.url} />
        <p class="hint">{T.objects.linkUntil(time(made.until))}</p>
        <footer>
          <button type="button" class="primary" onClick={props.onClose}>
            {T.done}
          </button>
        </footer>
      </Dialog>
    );
  }
  return (
    <ActionDialog
      title={T.objects.linkTitle}
      button={T.objects.makeLink}
      onClose={props.onClose}
      run={async () => {
        const answer = await send<{ url: string }>("POST", "/api/presign", { bucket: props.bucket, key: props.entry.key, seconds });
        if (answer) setMade({ url: answer.url, until: Date.now() + seconds * 1000 });
        return false;
      }}
    >
      <p>{T.objects.linkText}</p>
      <label class="field">
        <span>{T.objects.linkFor}</span>
        <select value={seconds} onChange={(event) => setSeconds(Number(event.currentTarget.value))}>
          {TIMES.map((choice, index) => (
            <option key={choice} value={choice}>
              {T.objects.linkTimes[index]}
            </option>
          ))}
        </select>
      </label>
    </ActionDialog>
  );
}

export function ArchiveDialog(props: { bucket: string; prefix: string; onClose: () => void }) {
  const address = (format: string) => `/api/archive?${new URLSearchParams({ bucket: props.bucket, prefix: props.prefix, format })}`;
  return (
    <Dialog title={T.objects.archiveTitle(props.prefix || props.bucket)} onClose={props.onClose}>
      <p>{T.objects.archiveText}</p>
      <footer>
        <a class="button" href={address("tar")} download="" onClick={() => setTimeout(props.onClose, 100)}>
          tar
        </a>
        <a class="button" href={address("zip")} download="" onClick={() => setTimeout(props.onClose, 100)}>
          zip
        </a>
      </footer>
    </Dialog>
  );
}
