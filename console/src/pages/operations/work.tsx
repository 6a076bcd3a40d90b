// The scrub and the backup, with their start buttons.
import { useState } from "preact/hooks";
import { bytes, count, span, time } from "../../data/format";
import { send, wordsOf } from "../../data/http";
import type { Sample } from "../../data/types";
import { T } from "../../texts";
import { Fault, Panel, Said } from "../../ui/parts";
import { say } from "../../ui/toasts";

export function Facts(props: { rows: [string, string][] }) {
  return (
    <dl class="facts">
      {props.rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Scrub(props: { sample: Sample; admin: boolean }) {
  const { scrub, at_ms } = props.sample;
  const [words, setWords] = useState("");
  const start = async () => {
    try {
      await send("POST", "/api/scrub");
      setWords("");
      say(T.operations.scrubStarted);
    } catch (error) {
      setWords(wordsOf(error));
    }
  };
  return (
    <Panel
      id="scrub"
      title={T.operations.scrub}
      aside={
        <button type="button" disabled={!props.admin || scrub.running === true} onClick={() => void start()}>
          {scrub.running ? T.operations.scrubRuns : T.operations.scrubStart}
        </button>
      }
    >
      <Fault words={words} />
      <Facts
        rows={[
          [T.operations.scrubLast, scrub.ended_ms ? `${time(scrub.ended_ms)} (${T.ago(span((at_ms - scrub.ended_ms) / 1000))})` : T.operations.scrubNever],
          [T.operations.scrubPasses, count(scrub.passes)],
          [T.operations.scrubRead, bytes(scrub.bytes)],
          [T.operations.scrubProblems, count(scrub.problems)],
        ]}
      />
      <p class="hint">{T.operations.scrubText}</p>
    </Panel>
  );
}

export function Backup(props: { sample: Sample }) {
  const { backup, at_ms } = props.sample;
  return (
    <Panel
      id="backup"
      title={T.operations.backup}
      aside={
        <a class="button" href="/api/backup" download="">
          {T.operations.backupStart}
        </a>
      }
    >
      <Facts
        rows={[
          [T.operations.backupLast, backup ? `${time(backup.at_ms)} (${T.ago(span((at_ms - backup.at_ms) / 1000))})` : T.overview.never],
          [T.operations.backupVersion, backup ? String(backup.version) : "–"],
        ]}
      />
      <p class="hint">
        <Said text={T.operations.backupText} />
      </p>
    </Panel>
  );
}
