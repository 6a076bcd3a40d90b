// A list that draws only the rows in view: 100,000 rows scroll as ten do.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

interface Props {
  label: string;
  rows: number;
  rowHeight: number;
  render: (index: number) => ComponentChildren;
  // Called when the last rows come into view.
  onEnd?: () => void;
  // The row that the keyboard is at.
  active: number;
  onActive: (index: number) => void;
  onKey?: (event: KeyboardEvent, index: number) => void;
}

const SPARE = 8;
// Browsers do not lay out elements above some 16 million pixels: longer lists are scaled.
const TALLEST = 8_000_000;

export function VirtualList(props: Props) {
  const host = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const block = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);

  const whole = props.rows * props.rowHeight;
  const tall = Math.min(whole, TALLEST);
  const scale = tall > height && whole > tall ? (whole - height) / (tall - height) : 1;
  const from = Math.max(0, Math.floor((top * scale) / props.rowHeight) - SPARE);
  const until = Math.min(props.rows, Math.ceil((top * scale + height) / props.rowHeight) + SPARE);

  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useLayoutEffect(() => {
    if (inner.current) inner.current.style.height = `${tall}px`;
    if (block.current) block.current.style.transform = `translateY(${from * props.rowHeight - top * scale + top}px)`;
  });

  useEffect(() => {
    if (until >= props.rows && props.rows > 0) props.onEnd?.();
  }, [until, props.rows, props.onEnd]);

  const move = (index: number) => {
    const next = Math.max(0, Math.min(props.rows - 1, index));
    props.onActive(next);
    const element = host.current;
    if (!element) return;
    const first = (top * scale) / props.rowHeight;
    const fits = Math.floor(height / props.rowHeight);
    if (next < first) element.scrollTop = (next * props.rowHeight) / scale;
    else if (next >= first + fits) element.scrollTop = ((next - fits + 1) * props.rowHeight) / scale;
  };

  const key = (event: KeyboardEvent) => {
    const fits = Math.max(1, Math.floor(height / props.rowHeight) - 1);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: fits, PageUp: -fits };
    const step = steps[event.key];
    if (step !== undefined) move(props.active + step);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(props.rows - 1);
    else {
      props.onKey?.(event, props.active);
      return;
    }
    event.preventDefault();
  };

  const visible: ComponentChildren[] = [];
  for (let index = from; index < until; index += 1) visible.push(props.render(index));
  return (
    <div
      ref={host}
      class="virtual"
      role="grid"
      tabIndex={0}
      aria-label={props.label}
      aria-rowcount={props.rows}
      aria-activedescendant={props.active >= from && props.active < until ? `row-${props.active}` : undefined}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      onKeyDown={key}
    >
      <div ref={inner} role="presentation">
        <div ref={block} role="rowgroup">
          {visible}
        </div>
      </div>
    </div>
  );
}
