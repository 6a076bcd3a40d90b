// Free runs by size, now and over the time that the page is open.
import { useEffect, useRef } from "preact/hooks";
import { colour, palette } from "../../app/theme";
import { bytes, clock, count, percent } from "../../data/format";
import type { RunClass, Space } from "../../data/types";
import { T } from "../../texts";
import { Bar, Empty, Scroll } from "../../ui/parts";

export interface RunsAt {
  at: number;
  runs: RunClass[];
}

export function RunTable(props: { space: Space }) {
  const { space } = props;
  const list = space.runs_by_size.filter((one) => one.runs > 0);
  const most = Math.max(1, ...list.map((one) => one.blocks));
  const total = Math.max(1, list.reduce((sum, one) => sum + one.blocks, 0));
  if (list.length === 0) return <Empty title={T.device.noRuns} />;
  return (
    <Scroll label={T.device.runs} class="short">
      <table class="runs">
        <thead>
          <tr>
            <th scope="col" class="number">{T.device.runSize}</th>
            <th scope="col" class="number">{T.device.runCount}</th>
            <th scope="col">{T.device.share}</th>
          </tr>
        </thead>
        <tbody>
          {list.map((one) => (
            <tr key={one.blocks_at_least}>
              <td class="number">{bytes(one.blocks_at_least * space.block_bytes)}</td>
              <td class="number">{count(one.runs)}</td>
              <td>
                <Bar
                  slim
                  label={T.device.share}
                  total={most}
                  shares={[{ label: T.device.share, value: one.blocks, colour: "--accent", text: percent(one.blocks / total) }]}
                />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

const HEIGHT = 190;
const LEFT = 62;
const BOTTOM = 20;

// Each column is one look at the device, each row a class of sizes; darker: more free bytes in runs of this size.
export function RunHistory(props: { past: RunsAt[]; blockBytes: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { past } = props;
  useEffect(() => {
    const element = canvas.current;
    const pen = element?.getContext("2d");
    if (!element || !pen) return;
    const ratio = devicePixelRatio || 1;
    const wide = element.clientWidth;
    element.width = wide * ratio;
    element.height = HEIGHT * ratio;
    pen.scale(ratio, ratio);
    const classes = [...new Set(past.flatMap((one) => one.runs.filter((run) => run.runs > 0).map((run) => run.blocks_at_least)))].sort((a, b) => a - b);
    const across = Math.min(24, (wide - LEFT) / Math.max(30, past.length));
    const down = (HEIGHT - BOTTOM) / Math.max(1, classes.length);
    pen.fillStyle = colour("--accent");
    past.forEach((one, column) => {
      const total = one.runs.reduce((sum, run) => sum + run.blocks, 0) || 1;
      for (const run of one.runs) {
        const row = classes.indexOf(run.blocks_at_least);
        if (run.runs === 0 || row < 0) continue;
        pen.globalAlpha = 0.12 + 0.88 * Math.sqrt(run.blocks / total);
        pen.fillRect(LEFT + column * across, HEIGHT - BOTTOM - (row + 1) * down, Math.max(1, across), Math.max(1, down - 1));
      }
    });
    pen.globalAlpha = 1;
    pen.fillStyle = colour("--muted");
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(classes.length / 10));
    classes.forEach((blocks, row) => {
      if (row % every === 0) pen.fillText(bytes(blocks * props.blockBytes), LEFT - 8, HEIGHT - BOTTOM - row * down - down / 2);
    });
    pen.textBaseline = "alphabetic";
    pen.textAlign = "left";
    const first = past[0];
    if (first) pen.fillText(T.device.since(clock(first.at)), LEFT, HEIGHT - 5);
  }, [past, palette.value]);
  return (
    <figure class="heat">
      <canvas ref={canvas} role="img" aria-label={T.device.runsOverTime} />
      <figcaption>{T.device.runsHint}</figcaption>
    </figure>
  );
}
