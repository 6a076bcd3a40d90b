// The Markdown of the documentation: headings, paragraphs, lists, tables, code, links. Nothing becomes HTML by its text.
import type { ComponentChildren } from "preact";

type Block =
  | { kind: "heading"; level: number; text: string }
  | { kind: "code"; text: string }
  | { kind: "list"; items: string[]; ordered: boolean }
  | { kind: "table"; rows: string[][] }
  | { kind: "text"; text: string };

function cells(line: string): string[] {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const ITEM = /^\s*(?:[-*]|\d+\.)\s+/;

export function blocks(text: string): Block[] {
  const lines = text.split("\n");
  const found: Block[] = [];
  let at = 0;
  const line = () => lines[at] ?? "";
  while (at < lines.length) {
    const heading = /^(#{1,6})\s+(.*)$/.exec(line());
    if (line().startsWith("```")) {
      const code: string[] = [];
      for (at += 1; at < lines.length && !line().startsWith("```"); at += 1) code.push(line());
      at += 1;
      found.push({ kind: "code", text: code.join("\n") });
    } else if (/^ {4}\S/.test(line())) {
      const code: string[] = [];
      for (; /^( {4}|$)/.test(line()) && at < lines.length; at += 1) code.push(line().slice(4));
      found.push({ kind: "code", text: code.join("\n").trimEnd() });
    } else if (heading) {
      found.push({ kind: "heading", level: heading[1]?.length ?? 1, text: heading[2] ?? "" });
      at += 1;
    } else if (line().startsWith("|")) {
      const rows: string[][] = [];
      for (; line().startsWith("|"); at += 1) if (!/^\|[\s:|-]+$/.test(line())) rows.push(cells(line()));
      found.push({ kind: "table", rows });
    } else if (ITEM.test(line())) {
      const items: string[] = [];
      const ordered = /^\s*\d/.test(line());
      for (; at < lines.length && line().trim() && !line().startsWith("```"); at += 1) {
        if (ITEM.test(line())) items.push(line().replace(ITEM, ""));
        else items[items.length - 1] += ` ${line().trim()}`;
      }
      found.push({ kind: "list", items, ordered });
    } else if (!line().trim() || line().startsWith("<!--")) {
      at += 1;
    } else {
      const words: string[] = [];
      for (; line().trim() && !/^(```|#|\|)/.test(line()) && !ITEM.test(line()); at += 1) words.push(line().trim());
      found.push({ kind: "text", text: words.join(" ") });
    }
  }
  return found;
}

export function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, "")
    .trim()
    .replace(/\s/g, "-");
}

// The address of a link of the page `path`: other pages open here, files of the repository nowhere.
function target(path: string, href: string): string | null {
  if (/^https?:/.test(href)) return href;
  const resolved = new URL(href, `http://docs/${path}`);
  return resolved.pathname.endsWith(".md") && resolved.pathname.startsWith("/docs/") ? `#/docs${resolved.pathname}${resolved.hash}` : null;
}

function inline(text: string, path: string): ComponentChildren[] {
  const parts = text.split(/(`[^`]+`|\[[^\]]+\]\([^)]+\)|\*\*[^*]+\*\*|\*[^*\s][^*]*\*)/);
  return parts.map((part, index) => {
    const link = /^\[([^\]]+)\]\(([^)]+)\)$/.exec(part);
    if (link) {
      const href = target(path, link[2] ?? "");
      const words = inline(link[1] ?? "", path);
      return href ? <a key={index} href={href} rel="noreferrer">{words}</a> : <span key={index}>{words}</span>;
    }
    if (part.startsWith("`") && part.length > 2) return <code key={index}>{part.slice(1, -1)}</code>;
    if (part.startsWith("**") && part.length > 4) return <b key={index}>{inline(part.slice(2, -2), path)}</b>;
    if (/^\*[^*]+\*$/.test(part)) return <em key={index}>{part.slice(1, -1)}</em>;
    return part;
  });
}

function BlockView(props: { block: Block; path: string }) {
  const { block, path } = props;
  switch (block.kind) {
    case "heading": {
      const Name = `h${Math.min(6, block.level)}` as "h1";
      return <Name id={`docs-${anchorOf(block.text)}`}>{inline(block.text, path)}</Name>;
    }
    case "code":
      return <pre tabIndex={0}>{block.text}</pre>;
    case "list": {
      const items = block.items.map((item, index) => <li key={index}>{inline(item, path)}</li>);
      return block.ordered ? <ol>{items}</ol> : <ul>{items}</ul>;
    }
    case "table":
      return <Table rows={block.rows} path={path} />;
    default:
      return <p>{inline(block.text, path)}</p>;
  }
}

function Table(props: { rows: string[][]; path: string }) {
  const [head = [], ...rest] = props.rows;
  return (
    <div class="scroll" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {head.map((cell, index) => (
              <th key={index} scope="col">
                {inline(cell, props.path)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rest.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) => (
                <td key={column}>{inline(cell, props.path)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Markdown(props: { text: string; path: string }) {
  return (
    <>
      {blocks(props.text).map((block, index) => (
        <BlockView key={index} block={block} path={props.path} />
      ))}
    </>
  );
}
