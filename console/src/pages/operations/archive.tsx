// The archive: its state, and the moments that it can restore.
import { bytes, count, span, time } from "../../data/format";
import type { Archive } from "../../data/types";
import { T } from "../../texts";
import { Bar, Empty, Fault, Panel } from "../../ui/parts";
import { usePolled } from "../../ui/polled";
import { Facts } from "./work";

const BAD = ["fenced", "refused"];

export function ArchivePanel() {
  const polled = usePolled<{ archive: Archive | null }>("/api/archived", 3000);
  const of = polled.value?.archive;
  return (
    <Panel id="archive" title={T.operations.archive}>
      <Fault words={polled.words} retry={polled.again} />
      {of === null ? <Empty title={T.operations.archiveNone} /> : null}
      {of ? (
        <>
          <p class={BAD.includes(of.state) ? "bad" : of.state === "shipping" ? "good-line" : "warn"}>{of.words}</p>
          <Facts
            rows={[
              [T.operations.archiveLag, of.lag_s > 0 ? `${span(of.lag_s)}, ${bytes(of.lag_bytes)}` : T.operations.archiveNoLag],
              [T.operations.archiveVersion, count(of.version)],
              [T.operations.archiveOldest, of.oldest_s === null ? T.operations.archiveNothing : time(of.oldest_s * 1000)],
              [T.operations.archiveBase, of.base_taken_s === null ? T.operations.archiveNothing : time(of.base_taken_s * 1000)],
              [T.operations.archiveLog, bytes(of.log_bytes_since_base)],
              [T.operations.archiveRequests, T.operations.archiveFailed(count(of.requests), count(of.failures))],
              [T.operations.archiveGaps, count(of.gaps)],
            ]}
          />
          {of.base_bytes_expected > 0 ? (
            <Bar
              label={T.operations.archiveUpload}
              total={Math.max(of.base_bytes_expected, of.base_bytes)}
              shares={[{ label: T.operations.archiveUpload, value: of.base_bytes, colour: "--accent", text: bytes(of.base_bytes) }]}
            />
          ) : null}
          {of.spool_bytes > 0 ? (
            <Bar
              label={T.operations.archiveSpool}
              total={of.spool_bytes_max}
              shares={[{ label: T.operations.archiveSpool, value: of.spool_bytes, colour: "--accent", text: bytes(of.spool_bytes) }]}
            />
          ) : null}
        </>
      ) : null}
      <p class="hint">
        <a href="#/docs/docs/operate/archive.md">{T.overview.readOn}</a>
      </p>
    </Panel>
  );
}
