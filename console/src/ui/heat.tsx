// Latency over time: each column is a second, each row a bucket of latency, darker with more requests.
import { useEffect, useRef, useState } from "preact/hooks";
import { colour, palette } from "../app/theme";
import { clock, count, duration } from "../data/format";
import { T } from "../texts";

interface Props {
  label: string;
  times: number[];
  columns: number[][];
  edges: number[];
  // How many columns fit the chart.
  width: number;
}

const HEIGHT = 190;
const LEFT = 62;
const BOTTOM = 20;

interface Rows {
  low: number;
  high: number;
}

// The buckets that hold any request of the shown time.
function used(columns: number[][]): Rows {
  let low = Infinity;
  let high = 0;
  for (const column of columns) {
    column.forEach((n, bucket) => {
      if (n > 0) {
        low = Math.min(low, bucket);
        high = Math.max(high, bucket);
      }
    });
  }
  return low > high ? { low: 0, high: 8 } : { low: Math.max(0, low - 1), high: high + 1 };
}

function paint(canvas: HTMLCanvasElement, props: Props, rows: Rows): void {
  const ratio = devicePixelRatio || 1;
  const wide = canvas.clientWidth;
  canvas.width = wide * ratio;
  canvas.height = HEIGHT * ratio;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.scale(ratio, ratio);
  const most = Math.max(1, ...props.columns.map((column) => Math.max(0, ...column)));
  const across = (wide - LEFT) / props.width;
  const down = (HEIGHT - BOTTOM) / (rows.high - rows.low + 1);
  pen.fillStyle = colour("--accent");
  const start = props.width - props.columns.length;
  props.columns.forEach((column, index) => {
    for (let bucket = rows.low; bucket <= rows.high; bucket += 1) {
      const n = column[bucket] ?? 0;
      if (n === 0) continue;
      pen.globalAlpha = 0.18 + 0.82 * (Math.log1p(n) / Math.log1p(most));
      pen.fillRect(LEFT + (start + index) * across, HEIGHT - BOTTOM - (bucket - rows.low + 1) * down, Math.max(1, across), Math.max(1, down - 0.5));
    }
  });
  pen.globalAlpha = 1;
  pen.fillStyle = colour("--muted");
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const every = Math.max(1, Math.ceil((rows.high - rows.low + 1) / 7));
  for (let bucket = rows.low; bucket <= rows.high; bucket += every) {
    const edge = props.edges[bucket];
    if (edge !== undefined) pen.fillText(duration(edge), LEFT - 8, HEIGHT - BOTTOM - (bucket - rows.low) * down - down / 2);
  }
  pen.textBaseline = "alphabetic";
  const labels = Math.max(2, Math.floor((wide - LEFT) / 110));
  for (let n = 1; n < labels; n += 1) {
    const index = Math.round((props.width * n) / labels) - start;
    const at = props.times[index];
    if (at === undefined) continue;
    pen.textAlign = "center";
    pen.fillText(clock(at), LEFT + (start + index) * across, HEIGHT - 5);
  }
}

export function Heat(props: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hover, setHover] = useState("");
  const rows = used(props.columns);

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    paint(element, props, rows);
    const observer = new ResizeObserver(() => paint(element, props, rows));
    observer.observe(element);
    return () => observer.disconnect();
  }, [props.columns, props.edges, palette.value]);

  const point = (event: PointerEvent) => {
    const box = (event.currentTarget as HTMLCanvasElement).getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left - LEFT) / (box.width - LEFT)) * props.width) - (props.width - props.columns.length);
    const up = 1 - (event.clientY - box.top) / (HEIGHT - BOTTOM);
    const bucket = rows.low + Math.floor(up * (rows.high - rows.low + 1));
    const column = props.columns[index];
    const at = props.times[index];
    if (!column || at === undefined || up < 0) {
      setHover("");
      return;
    }
    const edge = props.edges[bucket];
    setHover(T.puts.heatAt(clock(at), edge === undefined ? "" : duration(edge), count(column[bucket] ?? 0)));
  };

  return (
    <figure class="heat">
      <canvas ref={canvas} role="img" aria-label={props.label} onPointerMove={point} onPointerLeave={() => setHover("")} />
      <figcaption>{hover || T.puts.heatHint}</figcaption>
    </figure>
  );
}
