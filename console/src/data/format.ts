// Numbers, sizes, durations and times as the pages show them. Times are in the viewer's zone.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const NONE = "–";

export function bytes(n: number | null | undefined): string {
  if (n === null || n === undefined) return NONE;
  let unit = 0;
  let value = n;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${significant(value, unit === 0)} ${UNITS[unit]}`;
}

function significant(value: number, whole: boolean): string {
  if (whole) return String(Math.round(value));
  if (value >= 100) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

const PLAIN = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(n: number | null | undefined): string {
  return n === null || n === undefined ? NONE : PLAIN.format(n);
}

// A figure of a second: small ones with a digit behind the point, large ones in thousands or millions.
export function rate(n: number | null | undefined): string {
  if (n === null || n === undefined) return NONE;
  if (n >= 1e6) return `${significant(n / 1e6, false)} M`;
  if (n >= 1e4) return `${significant(n / 1e3, false)} k`;
  if (n >= 10 || Number.isInteger(n)) return PLAIN.format(n);
  return n.toFixed(1);
}

export function duration(us: number | null | undefined): string {
  if (us === null || us === undefined) return NONE;
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${significant(us / 1000, false)} ms`;
  return span(us / 1e6);
}

export function span(seconds: number): string {
  if (seconds < 60) return `${seconds >= 10 ? Math.round(seconds) : Number(seconds.toFixed(1))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  const days = Math.floor(hours / 24);
  return days < 7 ? `${days} d ${hours % 24} h` : `${days} d`;
}

export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return NONE;
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value >= 10 ? value.toFixed(0) : value.toFixed(1)} %`;
}

const TIME = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
  timeZoneName: "short",
});
const SHORT = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export function time(ms: number): string {
  return TIME.format(new Date(ms));
}

// Without seconds and zone, for long lists.
export function shortTime(ms: number): string {
  return SHORT.format(new Date(ms));
}

export function clock(ms: number): string {
  return CLOCK.format(new Date(ms));
}

// A text of the server as a sentence.
export function sentence(text: string): string {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}
