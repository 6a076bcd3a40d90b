// Pages by the hash of the address: `#/objects/photos/2026/` has the page `objects` and the rest `photos/2026/`.
import { signal } from "@preact/signals";

export const PAGES = ["overview", "device", "puts", "objects", "operations", "keys"] as const;
export type Page = (typeof PAGES)[number] | "docs";

export interface Route {
  page: Page;
  rest: string;
}

function parse(): Route {
  const text = location.hash.replace(/^#\/?/, "");
  const slash = text.indexOf("/");
  const name = slash < 0 ? text : text.slice(0, slash);
  const rest = slash < 0 ? "" : text.slice(slash + 1);
  const page = name === "docs" || (PAGES as readonly string[]).includes(name) ? (name as Page) : "overview";
  return { page, rest };
}

export const route = signal<Route>(parse());

addEventListener("hashchange", () => {
  route.value = parse();
  document.querySelector("main")?.scrollTo(0, 0);
});

export function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function objectsHref(bucket: string, prefix = ""): string {
  return `#/objects/${encodeURIComponent(bucket)}/${prefix.split("/").map(encodeURIComponent).join("/")}`;
}
