// The figures of each second: the history at the start, then a stream. A stream that ends is opened again.
import { signal } from "@preact/signals";
import { connectionLost, seesFigures, state, stopped } from "../app/session";
import { getJson } from "./http";
import type { History, Sample } from "./types";

export const KEPT = 900;

export const latest = signal<Sample | null>(null);
export const samples: Sample[] = [];
export const edges = signal<number[]>([]);
// Seconds of the charts.
export const shown = signal(120);

const SILENCE_MS = 6000;
const AGAIN_MS = 2000;

let source: EventSource | null = null;
let watchdog = 0;

function keep(sample: Sample): void {
  const last = samples.at(-1);
  if (last && sample.at_ms <= last.at_ms) return;
  samples.push(sample);
  if (samples.length > KEPT) samples.splice(0, samples.length - KEPT);
}

export function close(): void {
  clearTimeout(watchdog);
  source?.close();
  source = null;
}

// The server may have stopped, the session may be over, or only the stream has ended.
function lost(): void {
  close();
  if (state.value !== "in") return;
  connectionLost();
  watchdog = window.setTimeout(() => void open(), AGAIN_MS);
}

function watch(): void {
  clearTimeout(watchdog);
  watchdog = window.setTimeout(lost, SILENCE_MS);
}

// Opens the stream if it is closed and the session sees figures.
export async function open(): Promise<void> {
  close();
  if (state.value !== "in" || stopped.value || !seesFigures()) return;
  const stream = new EventSource("/api/live");
  source = stream;
  watch();
  stream.addEventListener("live", (event) => {
    watch();
    const sample = JSON.parse((event as MessageEvent<string>).data) as Sample;
    keep(sample);
    latest.value = sample;
  });
  stream.onerror = () => {
    if (source === stream) lost();
  };
  try {
    const past = await getJson<History>("/api/history");
    edges.value = past.heat_edges_us;
    const later = samples.splice(0);
    past.samples.forEach(keep);
    later.forEach(keep);
    const newest = samples.at(-1);
    if (newest) latest.value = { ...newest };
  } catch {
    // The stream's own error, or 401 of this request, leads on.
  }
}

// The samples of the shown seconds.
export function window_(): Sample[] {
  const from = (samples.at(-1)?.at_ms ?? 0) - shown.value * 1000;
  let first = samples.length;
  while (first > 0 && (samples[first - 1]?.at_ms ?? 0) > from) first -= 1;
  return samples.slice(first);
}

// Requests of one kind, or of all kinds, over all frontends.
export function requests(sample: Sample, kind?: string): number {
  let sum = 0;
  for (const frontend of sample.frontends) {
    for (const [name, value] of Object.entries(frontend.per_s)) {
      if (kind === undefined || name === kind) sum += value;
    }
  }
  return sum;
}
