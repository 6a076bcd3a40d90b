// The device: what takes the room, cell by cell.
import { useEffect, useRef, useState } from "preact/hooks";
import { bytes, count, percent, rate } from "../../data/format";
import { latest, window_ } from "../../data/live";
import type { Space } from "../../data/types";
import { T } from "../../texts";
import { CensusLine, useCensus } from "../../ui/census";
import { Chart } from "../../ui/chart";
import { Choices, Fault, Legend, Panel, Stat } from "../../ui/parts";
import { usePolled } from "../../ui/polled";
import { Waiting } from "../waiting";
import { CellPanel } from "./cell";
import { type Colouring, cellColours, legendOf } from "./colours";
import { CellMap, describe } from "./map";
import { RunHistory, RunTable, type RunsAt } from "./runs";

const EVERY_MS = 2000;

export function Device() {
  const sample = latest.value;
  const narrow = innerWidth < 700;
  const polled = usePolled<Space>(sample ? `/api/space?cells=${narrow ? 1024 : 4096}` : null, EVERY_MS);
  const [colouring, setColouring] = useState<Colouring>("fill");
  const census = useCensus(sample !== null && colouring === "kind", false);
  const [hover, setHover] = useState<number | null>(null);
  const [chosen, setChosen] = useState<number | null>(null);
  const past = useRef<RunsAt[]>([]);
  const space = polled.value;
  useEffect(() => {
    if (!space) return;
    past.current = [...past.current, { at: Date.now(), runs: space.runs_by_size }].slice(-450);
  }, [space]);
  if (!sample) return <Waiting title={T.device.title} />;
  const { room, objects, background } = sample;
  return (
    <>
      <h1>{T.device.title}</h1>
      <dl class="stats">
        <Stat label={T.device.file} value={bytes(room.file_bytes)} note={T.device.ofCap(bytes(room.cap_bytes))} />
        <Stat label={T.device.used} value={bytes(room.used_bytes)} note={percent(room.used_bytes / Math.max(1, room.file_bytes))} />
        <Stat label={T.device.live} value={bytes(objects.bytes)} note={T.device.perLive(objects.bytes > 0 ? (room.used_bytes / objects.bytes).toFixed(2) : "–")} />
        <Stat label={T.device.writes} value={`${bytes(sample.device.write_bytes_per_s)}/s`} note={T.device.operations(rate(sample.device.writes_per_s))} />
        <Stat label={T.device.reads} value={`${bytes(sample.device.read_bytes_per_s)}/s`} note={T.device.operations(rate(sample.device.reads_per_s))} />
        <Stat label={T.device.moving} value={`${bytes(background.moved_bytes_per_s)}/s`} note={T.device.toMove(bytes(background.bytes_to_move), count(background.groups_closed))} />
      </dl>
      <Fault words={polled.words} retry={polled.again} />
      {space ? (
        <Panel
          title={T.device.map}
          wide
          aside={
            <Choices
              label={T.device.colourBy}
              value={colouring}
              onChoice={setColouring}
              choices={[
                { value: "fill", label: T.device.byFill },
                ...(space.kind ? [{ value: "kind" as const, label: T.device.byKind }] : []),
                ...(space.bucket ? [{ value: "bucket" as const, label: T.device.byBucket }] : []),
              ]}
            />
          }
        >
          <CellMap space={space} colours={cellColours(space, colouring)} hover={hover} chosen={chosen} onHover={setHover} onChoose={setChosen} />
          <p class="readout">{hover === null ? T.device.hint(bytes(space.cell_blocks * space.block_bytes)) : describe(space, hover)}</p>
          <Legend items={legendOf(space, colouring)} />
          {colouring === "kind" ? <CensusLine work={census} texts={T.device.census} objects={objects.count} /> : null}
        </Panel>
      ) : null}
      {space && chosen !== null ? <CellPanel space={space} cell={chosen} onClose={() => setChosen(null)} /> : null}
      {space ? (
        <div class="grid">
          <Panel title={T.device.runs}>
            <RunTable space={space} />
          </Panel>
          <Panel title={T.device.runsOverTime}>
            <RunHistory past={past.current} blockBytes={space.block_bytes} />
          </Panel>
          <OverTime />
        </div>
      ) : null}
    </>
  );
}

function OverTime() {
  latest.value;
  const past = window_();
  return (
    <Panel title={T.device.overTime} wide>
      <Chart
        label={T.device.overTimeLabel}
        format={bytes}
        binary
        formatRight={(value) => value.toFixed(2)}
        lines={[
          { label: T.device.used, colour: "--c1", fill: true },
          { label: T.device.live, colour: "--c2" },
          { label: T.device.ratio, colour: "--c3", right: true, dash: true },
        ]}
        data={[
          past.map((one) => one.at_ms / 1000),
          past.map((one) => one.room.used_bytes),
          past.map((one) => one.objects.bytes),
          past.map((one) => (one.objects.bytes > 0 ? one.room.used_bytes / one.objects.bytes : null)),
        ]}
      />
    </Panel>
  );
}
