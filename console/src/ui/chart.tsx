// A time line, drawn by uPlot. All charts of a page share the cursor.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { colour, palette } from "../app/theme";
import { clock } from "../data/format";
import { shown } from "../data/live";

export interface Line {
  label: string;
  colour: string;
  bars?: boolean;
  fill?: boolean;
  dash?: boolean;
  // The right axis.
  right?: boolean;
}

interface Props {
  label: string;
  lines: Line[];
  // Times in seconds, then the values of each line.
  data: (number | null)[][];
  format: (value: number) => string;
  formatRight?: (value: number) => string;
  height?: number;
  // Values are bytes: steps of the axis are powers of two.
  binary?: boolean;
  max?: number;
}

const FONT = "11px system-ui, sans-serif";
const sync = uPlot.sync("shoal");

const POWERS = Array.from({ length: 52 }, (_, power) => 2 ** power);

function axis(format: (value: number) => string, scale: string, side: 1 | 3, binary = false): uPlot.Axis {
  return {
    ...(binary ? { incrs: POWERS } : {}),
    scale,
    side,
    size: 62,
    font: FONT,
    stroke: colour("--muted"),
    grid: { show: side === 3, stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    values: (_, splits) => splits.map((value) => (value === null ? "" : format(value))),
  };
}

function series(line: Line): uPlot.Series {
  const stroke = colour(line.colour);
  const result: uPlot.Series = {
    label: line.label,
    stroke,
    width: 1.5,
    scale: line.right ? "right" : "y",
    points: { show: false },
    spanGaps: false,
  };
  if (line.dash) result.dash = [4, 3];
  if (line.fill || line.bars) result.fill = `${stroke}33`;
  if (line.bars) {
    result.width = 1;
    const bars = uPlot.paths.bars?.({ size: [0.8, 12, 1] });
    if (bars) result.paths = bars;
  }
  return result;
}

// The shown seconds, as in the map of latencies, even if the first of them have no figures.
function whole(_: uPlot, low: number, high: number): [number, number] {
  return [Math.min(low, high - shown.value), high];
}

function options(props: Props, width: number): uPlot.Options {
  const right = props.lines.some((line) => line.right);
  const top = (_: uPlot, low: number, high: number): [number, number] => [Math.min(0, low ?? 0), Math.max(high ?? 0, 1e-6) * 1.1];
  const y: uPlot.Scale = props.max === undefined ? { range: top } : { range: [0, props.max] };
  const axes: uPlot.Axis[] = [
    { font: FONT, stroke: colour("--muted"), grid: { show: false }, ticks: { show: false }, size: 24, space: 80, values: (_, splits) => splits.map((s) => clock(s * 1000)) },
    axis(props.format, "y", 3, props.binary),
  ];
  if (right && props.formatRight) axes.push(axis(props.formatRight, "right", 1));
  return {
    width,
    height: props.height ?? 140,
    cursor: { sync: { key: sync.key }, y: false, drag: { x: false, y: false }, points: { size: 6 } },
    legend: { show: false },
    padding: [8, 8, 0, 0],
    scales: { x: { time: true, range: whole }, y, right: { range: top } },
    axes,
    series: [{}, ...props.lines.map(series)],
  };
}

export function Chart(props: Props) {
  const host = useRef<HTMLDivElement>(null);
  const values = useRef<HTMLUListElement>(null);
  const plot = useRef<uPlot | null>(null);
  const kept = useRef(props);
  kept.current = props;

  const show = (chart: uPlot) => {
    const items = values.current?.querySelectorAll("b");
    const at = chart.cursor.idx ?? (kept.current.data[0]?.length ?? 0) - 1;
    kept.current.lines.forEach((line, index) => {
      const value = kept.current.data[index + 1]?.[at];
      const format = line.right && kept.current.formatRight ? kept.current.formatRight : kept.current.format;
      const item = items?.[index];
      if (item) item.textContent = value === null || value === undefined ? "–" : format(value);
    });
  };

  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const made = new uPlot(
      { ...options(kept.current, Math.max(200, element.clientWidth)), hooks: { setCursor: [show], setData: [show] } },
      kept.current.data as uPlot.AlignedData,
      element,
    );
    plot.current = made;
    show(made);
    const observer = new ResizeObserver(() => {
      const width = element.clientWidth;
      if (width > 0 && width !== made.width) made.setSize({ width, height: kept.current.height ?? 140 });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [palette.value, props.lines.length]);

  useEffect(() => {
    plot.current?.setData(props.data as uPlot.AlignedData);
  }, [props.data]);

  return (
    <figure class="chart">
      <div ref={host} role="img" aria-label={props.label} />
      <ul class="legend" ref={values}>
        {props.lines.map((line) => (
          <ChartItem key={line.label} line={line} />
        ))}
      </ul>
    </figure>
  );
}

function ChartItem(props: { line: Line }) {
  const swatch = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (swatch.current) swatch.current.style.backgroundColor = `var(${props.line.colour})`;
  }, [props.line.colour]);
  return (
    <li>
      <span class="swatch" ref={swatch} aria-hidden="true" />
      {props.line.label} <b>–</b>
    </li>
  );
}
