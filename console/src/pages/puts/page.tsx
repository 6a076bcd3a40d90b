// The way of a put: requests, commits, log and memtable, work in the background, latency over time, slow requests.
import { useState } from "preact/hooks";
import { bytes, count, duration, percent, rate } from "../../data/format";
import { edges, latest, requests, shown, window_ } from "../../data/live";
import type { Sample } from "../../data/types";
import { T } from "../../texts";
import { Chart, type Line } from "../../ui/chart";
import { Heat } from "../../ui/heat";
import { Choices, Panel, Stat } from "../../ui/parts";
import { Waiting } from "../waiting";
import { Slow } from "./slow";

type Of = (sample: Sample) => number | null;

function Times(props: { title: string; label: string; past: Sample[]; lines: (Line & { of: Of })[]; format: (n: number) => string; formatRight?: (n: number) => string; max?: number; binary?: boolean }) {
  const { past, lines, title, ...rest } = props;
  return (
    <Panel title={title}>
      <Chart {...rest} lines={lines} data={[past.map((one) => one.at_ms / 1000), ...lines.map((line) => past.map(line.of))]} />
    </Panel>
  );
}

export function Puts() {
  const sample = latest.value;
  const [heat, setHeat] = useState<"put" | "get">("put");
  if (!sample) return <Waiting title={T.puts.title} />;
  const past = window_();
  return (
    <>
      <div class="title-line">
        <h1>{T.puts.title}</h1>
        <Choices
          label={T.puts.window}
          value={shown.value}
          onChoice={(value) => (shown.value = value)}
          choices={[
            { value: 120, label: T.puts.minutes(2) },
            { value: 300, label: T.puts.minutes(5) },
            { value: 900, label: T.puts.minutes(15) },
          ]}
        />
      </div>
      <Verdict sample={sample} />
      <Panel
        title={T.puts.heat}
        wide
        aside={
          <Choices
            label={T.puts.heatOf}
            value={heat}
            onChoice={setHeat}
            choices={[
              { value: "put", label: T.kinds.put },
              { value: "get", label: T.kinds.get },
            ]}
          />
        }
      >
        <Heat
          label={T.puts.heatLabel(heat === "put" ? T.kinds.put : T.kinds.get)}
          times={past.map((one) => one.at_ms)}
          columns={past.map((one) => one.heat[heat])}
          edges={edges.value}
          width={shown.value}
        />
      </Panel>
      <div class="grid">
        <Times
          title={T.puts.requests}
          label={T.puts.requests}
          past={past}
          format={rate}
          lines={[
            { label: T.kinds.put, colour: "--c1", fill: true, of: (one) => requests(one, "put") },
            { label: T.kinds.get, colour: "--c2", of: (one) => requests(one, "get") },
            { label: T.kinds.delete, colour: "--c3", of: (one) => requests(one, "delete") },
          ]}
        />
        <Times
          title={T.puts.commits}
          label={T.puts.commits}
          past={past}
          format={rate}
          formatRight={rate}
          lines={[
            { label: T.puts.batches, colour: "--c1", fill: true, of: (one) => one.commit.batches_per_s },
            { label: T.puts.records, colour: "--c3", right: true, of: (one) => one.commit.records_per_batch },
          ]}
        />
        <Times
          title={T.puts.flush}
          label={T.puts.flush}
          past={past}
          format={duration}
          lines={[
            { label: "p50", colour: "--c1", of: (one) => one.commit.flush_p50_us },
            { label: "p99", colour: "--c3", of: (one) => one.commit.flush_p99_us },
          ]}
        />
        <Times
          title={T.puts.latency}
          label={T.puts.latency}
          past={past}
          format={duration}
          lines={[
            { label: T.puts.putP50, colour: "--c1", of: (one) => one.latency.put.p50_us },
            { label: T.puts.putP99, colour: "--c3", of: (one) => one.latency.put.p99_us },
            { label: T.puts.getP99, colour: "--c2", of: (one) => one.latency.get.p99_us },
          ]}
        />
        <Times
          title={T.puts.fills}
          label={T.puts.fills}
          past={past}
          format={(value) => percent(value)}
          max={1}
          lines={[
            { label: T.puts.log, colour: "--c1", fill: true, of: (one) => (one.log.ring_bytes > 0 ? one.log.used_bytes / one.log.ring_bytes : null) },
            { label: T.puts.memtable, colour: "--c3", of: (one) => (one.memtable.max_bytes ? one.memtable.bytes / one.memtable.max_bytes : null) },
          ]}
        />
        <Times
          title={T.puts.background}
          label={T.puts.background}
          past={past}
          format={(value) => `${bytes(value)}/s`}
          binary
          lines={[
            { label: T.puts.applies, colour: "--c1", bars: true, of: (one) => one.background.page_bytes_per_s + one.background.home_bytes_per_s },
            { label: T.puts.merges, colour: "--c3", bars: true, of: (one) => one.background.merge_bytes_per_s },
            { label: T.puts.moved, colour: "--c5", of: (one) => one.background.moved_bytes_per_s },
          ]}
        />
      </div>
      <Slow />
    </>
  );
}

function Verdict(props: { sample: Sample }) {
  const { commit, latency, log, memtable, background } = props.sample;
  return (
    <dl class="stats">
      <Stat label={T.puts.putP99} value={duration(latency.put.p99_us)} note={T.overview.median(duration(latency.put.p50_us))} />
      <Stat label={T.puts.flushP99} value={duration(commit.flush_p99_us)} note={T.overview.median(duration(commit.flush_p50_us))} />
      <Stat label={T.puts.batches} value={`${rate(commit.batches_per_s)}/s`} note={T.puts.perBatch(rate(commit.records_per_batch))} />
      <Stat label={T.puts.log} value={percent(log.used_bytes / Math.max(1, log.ring_bytes))} note={T.overview.ofCap(bytes(log.used_bytes), bytes(log.ring_bytes))} />
      <Stat label={T.puts.memtable} value={bytes(memtable.bytes)} note={T.puts.recordsIn(count(memtable.records))} />
      <Stat
        label={T.puts.paused}
        value={`${rate(background.paused_ms_per_s)} ms/s`}
        note={T.puts.layers(count(background.layers), count(background.layers_most))}
        {...(background.paused_ms_per_s > 0 ? { tone: "warn" as const } : {})}
      />
    </dl>
  );
}
