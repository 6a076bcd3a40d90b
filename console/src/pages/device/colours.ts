// Colours of the cells: by fill, by kind, or by bucket.
import { colour } from "../../app/theme";
import type { Space } from "../../data/types";
import { T } from "../../texts";

export type Colouring = "fill" | "kind" | "bucket";

const KINDS: Record<string, string> = {
  free: "--track",
  data: "--c1",
  log: "--c3",
  image: "--c2",
  pages: "--c5",
  packed: "--c6",
  extents: "--c1",
  unknown: "--muted",
};
const BUCKETS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
export const SHADES = 9;

function mix(from: string, to: string, share: number): string {
  const parse = (hex: string) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
  const [a, b] = [parse(from), parse(to)];
  return `rgb(${a.map((value, index) => Math.round(value + ((b[index] ?? 0) - value) * share)).join(",")})`;
}

function shade(free: number): string {
  const step = Math.round(((255 - free) / 255) * (SHADES - 1)) / (SHADES - 1);
  return free === 255 ? colour("--track") : mix(colour("--map-low"), colour("--map-high"), step);
}

// With a census, data are the used blocks that it does not know.
export function kindsOf(space: Space): string[] {
  const kinds = space.kinds ?? [];
  return space.census_ms === undefined ? kinds : kinds.map((name) => (name === "data" ? "unknown" : name));
}

export function kindName(name: string): string {
  return T.device.kinds[name as keyof typeof T.device.kinds] ?? name;
}

function kindColour(name: string): string {
  return colour(KINDS[name] ?? "--muted");
}

function bucketColour(name: string | undefined, index: number): string {
  return colour(name === undefined || name === "" ? "--track" : (BUCKETS[index % BUCKETS.length] ?? "--muted"));
}

// One colour for each cell.
export function cellColours(space: Space, colouring: Colouring): string[] {
  if (colouring === "kind" && space.kind && space.kinds) {
    const table = kindsOf(space).map(kindColour);
    return space.kind.map((kind) => table[kind] ?? colour("--muted"));
  }
  if (colouring === "bucket" && space.bucket && space.buckets) {
    const table = space.buckets.map(bucketColour);
    const none = colour("--track");
    return space.bucket.map((bucket) => table[bucket] ?? none);
  }
  const shades = Array.from({ length: 256 }, (_, free) => shade(free));
  return space.free.map((free) => shades[free] ?? colour("--track"));
}

export interface LegendItem {
  label: string;
  colour: string;
}

export function legendOf(space: Space, colouring: Colouring): LegendItem[] {
  if (colouring === "kind" && space.kinds) {
    const seen = new Set(space.kind);
    return kindsOf(space).flatMap((name, index) => (seen.has(index) ? [{ label: kindName(name), colour: kindColour(name) }] : []));
  }
  if (colouring === "bucket" && space.buckets) {
    return space.buckets.slice(0, 24).map((name, index) => ({ label: name || T.device.shared, colour: bucketColour(name, index) }));
  }
  const items = [0, 0.25, 0.5, 0.75, 1].map((share) => ({
    label: share === 0 ? T.device.kinds.free : `${share * 100} %`,
    colour: share === 0 ? colour("--track") : shade(Math.round(255 * (1 - share))),
  }));
  return space.closed.length > 0 ? [...items, { label: T.device.emptied, colour: colour("--warn") }] : items;
}
