// The uploads of this page, and those that were broken off earlier.
import { useState } from "preact/hooks";
import { bytes, percent } from "../../../data/format";
import { wordsOf } from "../../../data/http";
import { abortUpload } from "../../../data/s3";
import { T } from "../../../texts";
import { Bar } from "../../../ui/parts";
import { say } from "../../../ui/toasts";
import { type Upload, clear, replace, retry, stop, uploads } from "./queue";
import { type Remembered, forget, remembered } from "./remembered";

const SHOWN = 50;

export function Uploads(props: { bucket: string }) {
  const all = uploads.value;
  const [, redraw] = useState(0);
  const broken = remembered(props.bucket).filter((past) => !all.some((one) => one.bucket === past.bucket && one.key === past.key && active(one)));
  if (all.length === 0 && broken.length === 0) return null;
  const finished = all.filter((one) => one.progress === "done").length;
  const present = all.filter((one) => one.progress === "exists");
  // Those in work come first: a long queue is not drawn in full.
  const rows = [...all].sort((a, b) => rank(a) - rank(b)).slice(0, SHOWN);
  return (
    <section class="uploads" aria-label={T.objects.uploads}>
      {all.length > 0 ? (
        <header>
          <b role="status">{T.objects.uploaded(finished, all.length)}</b>
          {present.length > 1 ? (
            <button type="button" onClick={() => replace(present)}>
              {T.objects.replaceAll}
            </button>
          ) : null}
          <button type="button" class="quiet" onClick={clear}>
            {T.objects.clear}
          </button>
        </header>
      ) : null}
      <ul>
        {rows.map((one) => (
          <UploadRow key={one.id} upload={one} />
        ))}
        {broken.map((past) => (
          <BrokenRow key={past.upload} past={past} onGone={() => redraw((n) => n + 1)} />
        ))}
      </ul>
    </section>
  );
}

function active(one: Upload): boolean {
  return one.progress === "sending" || one.progress === "paused" || one.progress === "waiting";
}

function rank(one: Upload): number {
  return ["failed", "exists", "sending", "paused", "stopped", "waiting", "done"].indexOf(one.progress);
}

function UploadRow(props: { upload: Upload }) {
  const one = props.upload;
  const share = one.file.size > 0 ? one.sent / one.file.size : one.progress === "done" ? 1 : 0;
  return (
    <li class={one.progress}>
      <span class="name" title={one.key}>
        {one.key}
      </span>
      <Bar
        slim
        label={one.key}
        total={Math.max(1, one.file.size)}
        shares={[{ label: T.objects.sent, value: one.progress === "done" ? Math.max(1, one.file.size) : one.sent, colour: "--accent", text: percent(share) }]}
      />
      <span class="words">
        {T.objects.progress[one.progress]} · {bytes(one.sent)} / {bytes(one.file.size)}
        {one.resumed > 0 ? ` · ${T.objects.resumed(bytes(one.resumed))}` : ""}
        {one.words ? ` · ${one.words}` : ""}
      </span>
      <span class="buttons">
        {one.progress === "exists" ? (
          <button type="button" onClick={() => replace([one])}>
            {T.objects.replace}
          </button>
        ) : null}
        {one.progress === "failed" || one.progress === "stopped" ? (
          <button type="button" onClick={() => retry(one)}>
            {T.objects.resume}
          </button>
        ) : null}
        {active(one) || one.progress === "exists" ? (
          <button type="button" aria-label={T.objects.stopOf(one.key)} onClick={() => stop(one)}>
            {T.objects.stop}
          </button>
        ) : null}
      </span>
    </li>
  );
}

function BrokenRow(props: { past: Remembered; onGone: () => void }) {
  const { past } = props;
  const drop = async () => {
    try {
      await abortUpload(past.bucket, past.key, past.upload);
    } catch (error) {
      say(wordsOf(error), true);
    }
    forget(past.bucket, past.key);
    props.onGone();
  };
  return (
    <li class="broken">
      <span class="name" title={past.key}>
        {past.key}
      </span>
      <span class="words">
        {T.objects.brokenOff(bytes(past.size))}
      </span>
      <span class="buttons">
        <button type="button" onClick={() => void drop()}>
          {T.objects.discard}
        </button>
      </span>
    </li>
  );
}
