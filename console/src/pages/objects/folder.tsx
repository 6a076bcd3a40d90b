// The inside of a bucket: the tree of one prefix, what is chosen in it, and uploads.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { objectsHref } from "../../app/router";
import { returns } from "../../app/session";
import { count } from "../../data/format";
import { type Entry, reachable } from "../../data/s3";
import { T } from "../../texts";
import { Empty, Fault } from "../../ui/parts";
import { VirtualList } from "../../ui/virtual";
import { doomed, gone } from "./deletes";
import { Details } from "./details";
import { ArchiveDialog, CopyDialog, DeleteDialog, LinkDialog } from "./dialogs";
import { RowView } from "./row";
import { Tree } from "./tree";
import { chosen, dropped } from "./upload/dropped";
import { Uploads } from "./upload/panel";
import { add, arrived } from "./upload/queue";

type Open = { kind: "delete" | "archive"; keys: string[]; prefixes: string[] } | { kind: "copy" | "link"; entry: Entry };

export function FolderView(props: { bucket: string; prefix: string }) {
  const { bucket, prefix } = props;
  const [search, setSearch] = useState("");
  const [shown, setShown] = useState("");
  const [active, setActive] = useState(0);
  const [picked, setPicked] = useState<Set<string>>(new Set());
  const [entry, setEntry] = useState<Entry | null>(null);
  const [dialog, setDialog] = useState<Open | null>(null);

  useEffect(() => {
    const timer = setTimeout(() => setShown(search), 200);
    return () => clearTimeout(timer);
  }, [search]);

  const tree = useMemo(() => new Tree(bucket, prefix, shown), [bucket, prefix, shown, arrived.value, returns.value]);
  useEffect(() => {
    void tree.load(tree.root);
    return () => tree.close();
  }, [tree]);
  useEffect(() => {
    if (gone.value?.bucket === bucket) tree.remove(gone.value.keys);
  }, [gone.value]);
  tree.version.value;
  doomed.value;

  const toggle = (name: string) => {
    const next = new Set(picked);
    if (!next.delete(name)) next.add(name);
    setPicked(next);
  };
  const enter = (index: number) => {
    const row = tree.rows[index];
    if (row?.kind === "entry") setEntry(row.entry);
    else if (row?.kind === "folder") location.hash = objectsHref(bucket, row.folder.prefix);
    else if (row) void tree.load(row.folder);
  };
  const key = (event: KeyboardEvent, index: number) => {
    const row = tree.rows[index];
    if (!row) return;
    if (event.key === "Enter") enter(index);
    else if (event.key === " " && row.kind !== "more") toggle(row.kind === "entry" ? row.entry.key : row.folder.prefix);
    else if (event.key === "ArrowRight" && row.kind === "folder" && !row.folder.open) tree.toggle(row.folder);
    else if (event.key === "ArrowLeft" && row.kind === "folder" && row.folder.open) tree.toggle(row.folder);
    else return;
    event.preventDefault();
  };
  const parts = [...picked];
  const prefixes = parts.filter((name) => name.endsWith("/"));
  const keys = parts.filter((name) => !name.endsWith("/"));
  const root = tree.root;

  return (
    <DropZone onFiles={(files) => add(bucket, prefix, files)}>
      <Crumbs bucket={bucket} prefix={prefix} />
      <div class="tools">
        <label class="search">
          <span class="hidden">{T.objects.search}</span>
          <input type="search" placeholder={T.objects.search} value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        </label>
        <UploadButtons onFiles={(files) => add(bucket, prefix, files)} />
        {parts.length > 0 ? (
          <div class="picked" role="group" aria-label={T.objects.chosen(parts.length)}>
            <span>{T.objects.chosen(parts.length)}</span>
            {parts.length === 1 && prefixes.length === 1 ? (
              <button type="button" onClick={() => setDialog({ kind: "archive", keys, prefixes })}>
                {T.objects.archive}
              </button>
            ) : null}
            <button type="button" class="danger" onClick={() => setDialog({ kind: "delete", keys, prefixes })}>
              {T.objects.remove}
            </button>
            <button type="button" class="quiet" onClick={() => setPicked(new Set())}>
              {T.objects.chooseNone}
            </button>
          </div>
        ) : (
          <button type="button" onClick={() => setDialog({ kind: "archive", keys: [], prefixes: [prefix] })}>
            {T.objects.archive}
          </button>
        )}
      </div>
      <Uploads bucket={bucket} />
      <Fault words={root.words} retry={() => void tree.load(root)} />
      <div class={entry ? "browser with-details" : "browser"}>
        <div class="listing">
          {root.loaded && tree.rows.length === 0 ? (
            <Empty title={shown ? T.objects.nothingFound(shown) : T.objects.emptyFolder}>{shown ? "" : T.objects.emptyFolderAdvice}</Empty>
          ) : (
            <VirtualList
              label={T.objects.listOf(bucket, prefix)}
              rows={tree.rows.length}
              rowHeight={32}
              active={active}
              onActive={setActive}
              onEnd={() => root.loaded && root.next && !root.words && void tree.load(root)}
              onKey={key}
              render={(index) => (
                <RowView
                  key={index}
                  index={index}
                  row={tree.rows[index]}
                  bucket={bucket}
                  base={prefix}
                  active={index === active}
                  picked={picked}
                  shownKey={entry?.key ?? ""}
                  onPick={toggle}
                  onOpen={(at) => {
                    setActive(at);
                    enter(at);
                  }}
                  onToggle={(folder) => tree.toggle(folder)}
                />
              )}
            />
          )}
          <p class="status" role="status">
            {T.objects.listed(count(tree.rows.length), root.next !== null, root.loading)}{" "}
            {root.next && !root.loading ? (
              <button type="button" class="link" onClick={() => void tree.loadAll()}>
                {T.objects.loadAll}
              </button>
            ) : null}
          </p>
        </div>
        {entry && reachable(entry.key) ? (
          <Details
            key={entry.key}
            bucket={bucket}
            entry={entry}
            onClose={() => setEntry(null)}
            onCopy={() => setDialog({ kind: "copy", entry })}
            onLink={() => setDialog({ kind: "link", entry })}
            onDelete={() => setDialog({ kind: "delete", keys: [entry.key], prefixes: [] })}
          />
        ) : null}
        {entry && !reachable(entry.key) ? <Empty title={T.objects.unreachable}>{T.objects.unreachableAdvice}</Empty> : null}
      </div>
      {dialog?.kind === "delete" ? (
        <DeleteDialog
          bucket={bucket}
          keys={dialog.keys}
          prefixes={dialog.prefixes}
          onClose={() => setDialog(null)}
          onDone={() => {
            setPicked(new Set());
            setEntry(null);
          }}
        />
      ) : null}
      {dialog?.kind === "archive" ? <ArchiveDialog bucket={bucket} prefix={dialog.prefixes[0] ?? ""} onClose={() => setDialog(null)} /> : null}
      {dialog?.kind === "copy" ? <CopyDialog bucket={bucket} entry={dialog.entry} onClose={() => setDialog(null)} /> : null}
      {dialog?.kind === "link" ? <LinkDialog bucket={bucket} entry={dialog.entry} onClose={() => setDialog(null)} /> : null}
    </DropZone>
  );
}

function Crumbs(props: { bucket: string; prefix: string }) {
  const parts = props.prefix.split("/").slice(0, -1);
  return (
    <>
      <h1 class="hidden">{T.objects.listOf(props.bucket, props.prefix)}</h1>
      <nav class="crumbs" aria-label={T.objects.where}>
        <a href="#/objects">{T.objects.buckets}</a>
        <span aria-hidden="true">/</span>
        <a href={objectsHref(props.bucket)}>{props.bucket}</a>
        {parts.map((part, index) => (
          <span key={index}>
            <span aria-hidden="true">/</span>
            <a href={objectsHref(props.bucket, `${parts.slice(0, index + 1).join("/")}/`)}>{part || T.objects.emptyName}</a>
          </span>
        ))}
      </nav>
    </>
  );
}

type Files = { name: string; file: File }[];

function UploadButtons(props: { onFiles: (files: Files) => void }) {
  const files = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);
  const take = (event: Event) => {
    const field = event.currentTarget as HTMLInputElement;
    if (field.files) props.onFiles(chosen(field.files));
    field.value = "";
  };
  useEffect(() => folder.current?.setAttribute("webkitdirectory", ""), []);
  return (
    <>
      <input ref={files} type="file" multiple hidden aria-label={T.objects.uploadFiles} onChange={take} />
      <input ref={folder} type="file" hidden aria-label={T.objects.uploadFolder} onChange={take} />
      <button type="button" class="primary" onClick={() => files.current?.click()}>
        {T.objects.uploadFiles}
      </button>
      <button type="button" onClick={() => folder.current?.click()}>
        {T.objects.uploadFolder}
      </button>
    </>
  );
}

function DropZone(props: { onFiles: (files: Files) => void; children: ComponentChildren }) {
  const [over, setOver] = useState(false);
  return (
    <div
      class={over ? "drop over" : "drop"}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={(event) => {
        if (event.currentTarget === event.target) setOver(false);
      }}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        if (event.dataTransfer) void dropped(event.dataTransfer).then(props.onFiles);
      }}
    >
      {props.children}
      {over ? (
        <div class="drop-hint" aria-hidden="true">
          {T.objects.drop}
        </div>
      ) : null}
    </div>
  );
}
