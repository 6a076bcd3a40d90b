// Is it healthy, how full, how fast, what is slow, when was the last backup: without a click.
import { bytes, count, duration, percent, rate, span, time } from "../../data/format";
import { latest, requests, window_ } from "../../data/live";
import type { Sample } from "../../data/types";
import { T } from "../../texts";
import { Chart } from "../../ui/chart";
import { Bar, Panel, Scroll, Stat } from "../../ui/parts";
import { Waiting } from "../waiting";
import { Warnings } from "./warnings";

export function Overview() {
  const sample = latest.value;
  if (!sample) return <Waiting title={T.overview.title} />;
  return (
    <>
      <h1>{T.overview.title}</h1>
      <Health sample={sample} />
      <Warnings list={sample.health.warnings} />
      <div class="grid">
        <Speed sample={sample} />
        <RoomPanel sample={sample} />
        <Latency sample={sample} />
        <Frontends sample={sample} />
        <Memory sample={sample} />
      </div>
    </>
  );
}

function Health(props: { sample: Sample }) {
  const { sample } = props;
  const ready = sample.health.ready;
  const tone = ready ? (sample.health.warnings.length > 0 ? "warn" : "good") : "bad";
  const word = ready ? (tone === "warn" ? T.overview.readyWarn(sample.health.warnings.length) : T.overview.ready) : T.overview.notReady;
  const backup = sample.backup;
  return (
    <dl class="stats eight">
      <Stat label={T.overview.health} value={word} tone={tone} note={sample.health.reason ?? T.overview.up(span(sample.uptime_s), sample.version)} />
      <Stat
        label={T.overview.roomUsed}
        value={percent(sample.room.used_bytes / sample.room.cap_bytes)}
        note={T.overview.ofCap(bytes(sample.room.used_bytes), bytes(sample.room.cap_bytes))}
      />
      <Stat label={T.overview.objects} value={count(sample.objects.count)} note={bytes(sample.objects.bytes)} />
      <Stat label={T.overview.requests} value={`${rate(requests(sample))}/s`} note={T.overview.putsGets(rate(requests(sample, "put")), rate(requests(sample, "get")))} />
      <Stat label={T.overview.putTime} value={duration(sample.latency.put.p99_us)} note={T.overview.median(duration(sample.latency.put.p50_us))} />
      <Stat label={T.overview.getTime} value={duration(sample.latency.get.p99_us)} note={T.overview.median(duration(sample.latency.get.p50_us))} />
      <Stat label={T.overview.hits} value={percent(sample.cache.hit_rate)} note={T.overview.ofCache(bytes(sample.cache.bytes), bytes(sample.cache.capacity_bytes))} />
      <Stat
        label={T.overview.backup}
        value={backup ? T.ago(span((sample.at_ms - backup.at_ms) / 1000)) : T.overview.never}
        note={backup ? time(backup.at_ms) : <a href="#/operations/backup">{T.overview.takeOne}</a>}
        {...(backup ? {} : { tone: "warn" as const })}
      />
    </dl>
  );
}

function Speed(props: { sample: Sample }) {
  const past = window_();
  return (
    <Panel title={T.overview.speed} wide>
      <Chart
        label={T.overview.speedLabel(rate(requests(props.sample, "put")), rate(requests(props.sample, "get")))}
        format={rate}
        height={150}
        lines={[
          { label: T.kinds.put, colour: "--c1", fill: true },
          { label: T.kinds.get, colour: "--c2", fill: true },
          { label: T.kinds.all, colour: "--muted", dash: true },
        ]}
        data={[
          past.map((one) => one.at_ms / 1000),
          past.map((one) => requests(one, "put")),
          past.map((one) => requests(one, "get")),
          past.map((one) => requests(one)),
        ]}
      />
    </Panel>
  );
}

function RoomPanel(props: { sample: Sample }) {
  const { room, objects } = props.sample;
  const disk = room.disk_free_bytes;
  const left = room.cap_bytes - room.file_bytes;
  return (
    <Panel title={T.overview.room} aside={<a href="#/device">{T.overview.map}</a>}>
      <Bar
        label={T.overview.room}
        total={room.cap_bytes}
        legend
        shares={[
          { label: T.overview.used, value: room.used_bytes, colour: "--accent", text: bytes(room.used_bytes) },
          { label: T.overview.freeInFile, value: room.file_bytes - room.used_bytes, colour: "--c4", text: bytes(room.file_bytes - room.used_bytes) },
          { label: T.overview.toCap, value: left, colour: "--track", text: bytes(left) },
        ]}
      />
      <dl class="facts">
        <Fact name={T.overview.free} value={bytes(room.free_bytes)} />
        <Fact name={T.overview.diskFree} value={disk === null ? T.overview.unknown : bytes(disk)} bad={disk !== null && disk < left} />
        <Fact name={T.overview.perLive} value={objects.bytes > 0 ? (room.used_bytes / objects.bytes).toFixed(2) : "–"} />
        <Fact name={T.overview.largestRun} value={bytes(room.largest_free_run_bytes)} />
      </dl>
      {disk !== null && disk < left ? <p class="hint warn">{T.overview.diskBelowCap(bytes(disk), bytes(left))}</p> : null}
      {room.cannot_grow ? <p class="hint warn">{room.cannot_grow}</p> : null}
    </Panel>
  );
}

function Fact(props: { name: string; value: string; bad?: boolean }) {
  return (
    <div>
      <dt>{props.name}</dt>
      <dd class={props.bad ? "warn" : ""}>{props.value}</dd>
    </div>
  );
}

function Latency(props: { sample: Sample }) {
  const { put, get } = props.sample.latency;
  const row = (name: string, of: typeof put) => (
    <tr>
      <th scope="row">{name}</th>
      <td class="number">{duration(of.p50_us)}</td>
      <td class="number">{duration(of.p99_us)}</td>
      <td class="number">{duration(of.p999_us)}</td>
      <td class="number">{duration(of.max_us)}</td>
    </tr>
  );
  return (
    <Panel title={T.overview.latency(put.window_s)} aside={<a href="#/puts">{T.overview.whySlow}</a>}>
      <Scroll label={T.overview.latency(put.window_s)}>
        <table>
          <thead>
            <tr>
              <th scope="col">{T.overview.operation}</th>
              <th scope="col" class="number">p50</th>
              <th scope="col" class="number">p99</th>
              <th scope="col" class="number">p99.9</th>
              <th scope="col" class="number">{T.overview.most}</th>
            </tr>
          </thead>
          <tbody>
            {row(T.overview.durablePut, put)}
            {row(T.kinds.get, get)}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

function Frontends(props: { sample: Sample }) {
  return (
    <Panel title={T.overview.frontends}>
      <Scroll label={T.overview.frontends}>
        <table>
          <thead>
            <tr>
              <th scope="col">{T.overview.frontend}</th>
              <th scope="col" class="number">{T.overview.perSecond}</th>
              <th scope="col" class="number">{T.overview.failed}</th>
              <th scope="col" class="number">{T.overview.in}</th>
              <th scope="col" class="number">{T.overview.out}</th>
              <th scope="col" class="number">{T.overview.connections}</th>
            </tr>
          </thead>
          <tbody>
            {props.sample.frontends.map((one) => (
              <tr key={one.name}>
                <th scope="row">{T.frontends[one.name as keyof typeof T.frontends] ?? one.name}</th>
                <td class="number">{rate(Object.values(one.per_s).reduce((sum, n) => sum + n, 0))}</td>
                <td class={one.failed_per_s > 0 ? "number warn" : "number"}>{rate(one.failed_per_s)}</td>
                <td class="number">{bytes(one.received_per_s)}/s</td>
                <td class="number">{bytes(one.sent_per_s)}/s</td>
                <td class="number">{count(one.connections)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

const PARTS = ["--accent", "--c2", "--c3", "--c4", "--c5", "--c6", "--c1"];

function Memory(props: { sample: Sample }) {
  const of = props.sample.process;
  return (
    <Panel title={T.overview.process}>
      <Bar
        label={T.overview.budget}
        total={of.memory_total_bytes}
        legend
        shares={of.memory_parts.slice(0, 7).map((part, index) => ({ label: part.name, value: part.bytes, colour: PARTS[index] ?? "--muted", text: bytes(part.bytes) }))}
      />
      <dl class="facts">
        <Fact name={T.overview.cpu} value={of.cpu_cores.toFixed(2)} />
        <Fact name={T.overview.budget} value={bytes(of.memory_total_bytes)} />
        <Fact name={T.overview.rss} value={bytes(of.rss_bytes)} />
        {of.threads === null ? null : <Fact name={T.overview.threads} value={count(of.threads)} />}
      </dl>
    </Panel>
  );
}
