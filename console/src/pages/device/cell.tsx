// One cell: its runs by kind, and its free runs as the allocator has them.
import { useEffect, useRef } from "preact/hooks";
import { colour, palette } from "../../app/theme";
import { bytes, count } from "../../data/format";
import type { Space } from "../../data/types";
import { T } from "../../texts";
import { Empty, Fault, Panel, Scroll } from "../../ui/parts";
import { usePolled } from "../../ui/polled";
import { kindName } from "./colours";
import { describe } from "./map";

interface Run {
  block: number;
  blocks: number;
}

interface Kind {
  runs: number;
  blocks: number;
}

interface Cell {
  start: number;
  blocks: number;
  free_blocks: number;
  used_blocks: number;
  log_blocks: number;
  image_blocks: number;
  kinds?: { pages: Kind; packed: Kind; extents: Kind };
  runs: Run[];
  more: boolean;
}

const LISTED = 100;

export function CellPanel(props: { space: Space; cell: number; onClose: () => void }) {
  const { space, cell } = props;
  const start = cell * space.cell_blocks;
  const blocks = Math.min(space.cell_blocks, space.blocks - start);
  const polled = usePolled<Cell>(`/api/space/cell?start=${start}&blocks=${blocks}`, 2000);
  const found = polled.value?.start === start ? polled.value : null;
  return (
    <Panel
      title={T.device.cellTitle(count(cell))}
      wide
      aside={
        <button type="button" class="quiet" aria-label={T.close} onClick={props.onClose}>
          ×
        </button>
      }
    >
      <p>{describe(space, cell)}</p>
      <Fault words={polled.words} retry={polled.again} />
      {found ? <Strip cell={found} /> : null}
      {found ? <Kinds cell={found} number={cell} blockBytes={space.block_bytes} /> : null}
      {found && found.runs.length === 0 ? <Empty title={T.device.noRuns} /> : null}
      {found && found.runs.length > 0 ? (
        <Scroll label={T.device.freeRuns} class="short">
          <table>
            <thead>
              <tr>
                <th scope="col" class="number">{T.device.firstBlock}</th>
                <th scope="col" class="number">{T.device.blocks}</th>
                <th scope="col" class="number">{T.objects.size}</th>
              </tr>
            </thead>
            <tbody>
              {[...found.runs]
                .sort((a, b) => b.blocks - a.blocks)
                .slice(0, LISTED)
                .map((run) => (
                  <tr key={run.block}>
                    <td class="number">{count(run.block)}</td>
                    <td class="number">{count(run.blocks)}</td>
                    <td class="number">{bytes(run.blocks * space.block_bytes)}</td>
                  </tr>
                ))}
            </tbody>
          </table>
        </Scroll>
      ) : null}
      {found && found.runs.length > LISTED ? <p class="hint">{T.device.longest(LISTED, `${count(found.runs.length)}${found.more ? T.device.orMore : ""}`)}</p> : null}
    </Panel>
  );
}

// The runs of the cell by kind: the free runs and the log are those of now, pages and values those of the last census.
function Kinds(props: { cell: Cell; number: number; blockBytes: number }) {
  const { cell } = props;
  const data = Math.max(0, cell.used_blocks - cell.log_blocks - cell.image_blocks);
  const { pages, packed, extents } = cell.kinds ?? {};
  const known = (pages?.blocks ?? 0) + (packed?.blocks ?? 0) + (extents?.blocks ?? 0);
  const rows: [string, Partial<Kind> | undefined][] = [
    ["pages", pages],
    ["packed", packed],
    ["extents", extents],
    [cell.kinds ? "unknown" : "data", { blocks: Math.max(0, data - known) }],
    ["log", { blocks: cell.log_blocks }],
    ["image", { blocks: cell.image_blocks }],
    ["free", cell.more ? { blocks: cell.free_blocks } : { runs: cell.runs.length, blocks: cell.free_blocks }],
  ];
  return (
    <Scroll label={T.device.byKindOf(count(props.number))}>
      <table>
        <thead>
          <tr>
            <th scope="col">{T.device.kind}</th>
            <th scope="col" class="number">{T.device.runCount}</th>
            <th scope="col" class="number">{T.objects.size}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([name, kind]) =>
            kind?.blocks ? (
              <tr key={name}>
                <td>{kindName(name)}</td>
                <td class="number">{count(kind.runs)}</td>
                <td class="number">{bytes(kind.blocks * props.blockBytes)}</td>
              </tr>
            ) : null,
          )}
        </tbody>
      </table>
    </Scroll>
  );
}

function Strip(props: { cell: Cell }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { cell } = props;
  useEffect(() => {
    const element = canvas.current;
    const pen = element?.getContext("2d");
    if (!element || !pen) return;
    const wide = element.clientWidth;
    element.width = wide;
    element.height = 28;
    pen.fillStyle = colour("--accent");
    pen.fillRect(0, 0, wide, 28);
    pen.fillStyle = colour("--track");
    for (const run of cell.runs) {
      pen.fillRect(((run.block - cell.start) / cell.blocks) * wide, 0, Math.max(1, (run.blocks / cell.blocks) * wide), 28);
    }
  }, [cell, palette.value]);
  return <canvas class="strip" ref={canvas} role="img" aria-label={T.device.strip(count(cell.runs.length))} />;
}
