// The map: one square for each cell, on a canvas. Groups that are being emptied have a frame.
import { useEffect, useRef, useState } from "preact/hooks";
import { colour, palette } from "../../app/theme";
import { bytes, count, percent } from "../../data/format";
import type { Space } from "../../data/types";
import { T } from "../../texts";
import { kindName, kindsOf } from "./colours";

interface Props {
  space: Space;
  colours: string[];
  hover: number | null;
  chosen: number | null;
  onHover: (cell: number | null) => void;
  onChoose: (cell: number) => void;
}

// Squares of a size that brings the map near this height.
function layout(cells: number, width: number): { side: number; columns: number; rows: number } {
  const wanted = Math.min(420, Math.max(140, width * 0.35));
  const side = Math.max(5, Math.min(22, Math.floor(Math.sqrt((width * wanted) / Math.max(1, cells)))));
  const columns = Math.max(1, Math.floor(width / side));
  return { side, columns, rows: Math.ceil(cells / columns) };
}

export function closedCells(space: Space): Set<number> {
  const cells = new Set<number>();
  for (const group of space.closed) {
    const from = Math.floor((group * space.group_blocks) / space.cell_blocks);
    const until = Math.ceil(((group + 1) * space.group_blocks) / space.cell_blocks);
    for (let cell = from; cell < until && cell < space.free.length; cell += 1) cells.add(cell);
  }
  return cells;
}

export function describe(space: Space, cell: number): string {
  const free = (space.free[cell] ?? 0) / 255;
  const start = cell * space.cell_blocks;
  const kind = space.kind ? kindsOf(space)[space.kind[cell] ?? -1] : undefined;
  const bucket = space.bucket && space.buckets ? space.buckets[space.bucket[cell] ?? -1] : undefined;
  const parts = [
    T.device.cell(count(cell), bytes(start * space.block_bytes), percent(1 - free)),
    kind ? kindName(kind) : "",
    bucket ? T.device.ofBucket(bucket) : "",
    closedCells(space).has(cell) ? T.device.emptied : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

export function CellMap(props: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(800);
  const { space, colours } = props;
  const cells = space.free.length;
  const { side, columns, rows } = layout(cells, width);

  useEffect(() => {
    const parent = canvas.current?.parentElement;
    if (!parent) return;
    const measure = () => setWidth(parent.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(parent);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    const pen = element?.getContext("2d");
    if (!element || !pen) return;
    const ratio = devicePixelRatio || 1;
    element.width = columns * side * ratio;
    element.height = rows * side * ratio;
    element.style.width = `${columns * side}px`;
    element.style.height = `${rows * side}px`;
    pen.scale(ratio, ratio);
    const place = (cell: number): [number, number] => [(cell % columns) * side, Math.floor(cell / columns) * side];
    for (let cell = 0; cell < cells; cell += 1) {
      const [x, y] = place(cell);
      pen.fillStyle = colours[cell] ?? "";
      pen.fillRect(x, y, side - 1, side - 1);
    }
    pen.strokeStyle = colour("--warn");
    pen.lineWidth = 1.5;
    for (const cell of closedCells(space)) {
      const [x, y] = place(cell);
      pen.strokeRect(x + 0.5, y + 0.5, side - 2, side - 2);
    }
    pen.strokeStyle = colour("--text");
    pen.lineWidth = 2;
    for (const cell of [props.hover, props.chosen]) {
      if (cell === null) continue;
      const [x, y] = place(cell);
      pen.strokeRect(x, y, side - 1, side - 1);
    }
  }, [space, colours, columns, side, rows, props.hover, props.chosen, palette.value]);

  const at = (event: MouseEvent): number | null => {
    const box = (event.currentTarget as HTMLCanvasElement).getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / side);
    const cell = Math.floor((event.clientY - box.top) / side) * columns + column;
    return column < columns && cell >= 0 && cell < cells ? cell : null;
  };
  const key = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const step = steps[event.key];
    if (step !== undefined) props.onHover(Math.max(0, Math.min(cells - 1, (props.hover ?? -step) + step)));
    else if (event.key === "Enter" && props.hover !== null) props.onChoose(props.hover);
    else return;
    event.preventDefault();
  };
  return (
    <div class="map">
      <canvas
        ref={canvas}
        role="application"
        tabIndex={0}
        aria-label={props.hover === null ? T.device.mapLabel(count(cells)) : describe(space, props.hover)}
        onPointerMove={(event) => props.onHover(at(event))}
        onPointerLeave={() => props.onHover(null)}
        onClick={(event) => {
          const cell = at(event);
          if (cell !== null) props.onChoose(cell);
        }}
        onKeyDown={key}
      />
    </div>
  );
}
