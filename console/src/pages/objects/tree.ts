// The folders and keys below a prefix, as far as they are loaded, and the rows that show them.
import { signal } from "@preact/signals";
import { wordsOf } from "../../data/http";
import { type Entry, list } from "../../data/s3";

export interface Folder {
  prefix: string;
  depth: number;
  items: (Folder | Entry)[];
  next: string | null;
  loaded: boolean;
  loading: boolean;
  open: boolean;
  words: string;
}

export type Row =
  | { kind: "folder"; folder: Folder; depth: number }
  | { kind: "entry"; entry: Entry; depth: number }
  | { kind: "more"; folder: Folder; depth: number };

function folderOf(prefix: string, depth: number): Folder {
  return { prefix, depth, items: [], next: null, loaded: false, loading: false, open: false, words: "" };
}

function nameOf(item: Folder | Entry): string {
  return "key" in item ? item.key : item.prefix;
}

export class Tree {
  readonly bucket: string;
  readonly base: string;
  readonly root: Folder;
  // Changes with every load, so that pages draw again.
  readonly version = signal(0);
  rows: Row[] = [];
  private readonly leave = new AbortController();

  constructor(bucket: string, base: string, search: string) {
    this.bucket = bucket;
    this.base = base;
    this.root = folderOf(base + search, 0);
    this.root.open = true;
  }

  close(): void {
    this.leave.abort();
  }

  // The next page of a folder.
  async load(folder: Folder): Promise<void> {
    if (folder.loading || (folder.loaded && !folder.next)) return;
    folder.loading = true;
    folder.words = "";
    this.changed();
    try {
      const page = await list({ bucket: this.bucket, prefix: folder.prefix, token: folder.next, signal: this.leave.signal });
      const depth = folder === this.root ? 0 : folder.depth + 1;
      const items = [...page.folders.map((prefix) => folderOf(prefix, depth)), ...page.entries.filter((entry) => entry.key !== folder.prefix || folder === this.root)];
      items.sort((a, b) => (nameOf(a) < nameOf(b) ? -1 : 1));
      for (const item of items) folder.items.push(item);
      folder.next = page.next;
      folder.loaded = true;
    } catch (error) {
      if (this.leave.signal.aborted) return;
      folder.words = wordsOf(error);
    } finally {
      folder.loading = false;
    }
    this.changed();
  }

  async loadAll(): Promise<void> {
    do await this.load(this.root);
    while (this.root.next && !this.root.words && !this.leave.signal.aborted);
  }

  toggle(folder: Folder): void {
    folder.open = !folder.open;
    if (folder.open && !folder.loaded) void this.load(folder);
    this.changed();
  }

  // Takes deleted keys out, without a new listing.
  remove(keys: Set<string>): void {
    const prune = (folder: Folder) => {
      folder.items = folder.items.filter((item) => !keys.has(nameOf(item)));
      for (const item of folder.items) if ("items" in item && item.loaded) prune(item);
    };
    prune(this.root);
    this.changed();
  }

  private changed(): void {
    const rows: Row[] = [];
    const visit = (folder: Folder, depth: number) => {
      for (const item of folder.items) {
        if ("key" in item) rows.push({ kind: "entry", entry: item, depth });
        else {
          rows.push({ kind: "folder", folder: item, depth });
          if (item.open) visit(item, depth + 1);
        }
      }
      if (folder !== this.root && (folder.next || folder.loading || folder.words)) rows.push({ kind: "more", folder, depth });
    };
    visit(this.root, 0);
    this.rows = rows;
    this.version.value += 1;
  }
}
