// One row of the listing: a folder, an object, or the place of the next page.
import { useEffect, useRef } from "preact/hooks";
import { objectsHref } from "../../app/router";
import { bytes, shortTime } from "../../data/format";
import { T } from "../../texts";
import { doomed, mark } from "./deletes";
import type { Folder, Row } from "./tree";

interface Props {
  index: number;
  row: Row | undefined;
  bucket: string;
  base: string;
  active: boolean;
  picked: Set<string>;
  shownKey: string;
  onPick: (name: string) => void;
  onOpen: (index: number) => void;
  onToggle: (folder: Folder) => void;
}

export function RowView(props: Props) {
  const element = useRef<HTMLDivElement>(null);
  const { row } = props;
  useEffect(() => {
    if (element.current) element.current.style.setProperty("--depth", String(row?.depth ?? 0));
  }, [row?.depth]);
  if (!row) return null;
  const common = { id: `row-${props.index}`, ref: element, role: "row" as const, "aria-rowindex": props.index + 1 };
  if (row.kind === "more") {
    return (
      <div {...common} class={props.active ? "row active" : "row"}>
        <span role="gridcell" class="name">
          <button type="button" class="link" tabIndex={-1} onClick={() => props.onOpen(props.index)}>
            {row.folder.words || (row.folder.loading ? T.loading : T.objects.more)}
          </button>
        </span>
      </div>
    );
  }
  const name = row.kind === "folder" ? row.folder.prefix : row.entry.key;
  const parent = name.replace(/[^/]*\/?$/, "");
  const shown = name.slice(name.startsWith(props.base) && row.depth === 0 ? props.base.length : parent.length) || name;
  const waits = doomed.value.has(mark(props.bucket, name));
  const classes = ["row", props.active ? "active" : "", waits ? "doomed" : "", props.shownKey === name ? "shown" : ""];
  return (
    <div {...common} class={classes.filter(Boolean).join(" ")} aria-selected={props.picked.has(name)}>
      <span role="gridcell" class="pick">
        <input
          type="checkbox"
          tabIndex={-1}
          aria-label={T.objects.choose(shown)}
          checked={props.picked.has(name)}
          onChange={() => props.onPick(name)}
        />
      </span>
      <span role="gridcell" class="name">
        {row.kind === "folder" ? (
          <>
            <button
              type="button"
              class="twist"
              tabIndex={-1}
              aria-expanded={row.folder.open}
              aria-label={T.objects.expand(shown)}
              onClick={() => props.onToggle(row.folder)}
            >
              {row.folder.open ? "▾" : "▸"}
            </button>
            <a href={objectsHref(props.bucket, name)} tabIndex={-1} title={name}>
              {shown}
            </a>
          </>
        ) : (
          <button type="button" class="key" tabIndex={-1} title={name} onClick={() => props.onOpen(props.index)}>
            {shown}
          </button>
        )}
      </span>
      <span role="gridcell" class="size">
        {row.kind === "entry" ? bytes(row.entry.size) : ""}
      </span>
      <span role="gridcell" class="date">
        {row.kind === "entry" && row.entry.modified ? shortTime(Date.parse(row.entry.modified)) : ""}
      </span>
    </div>
  );
}
