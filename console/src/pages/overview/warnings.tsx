// Warnings: each with its remedy and its page of the documentation.
import { sentence } from "../../data/format";
import type { Warning } from "../../data/types";
import { T } from "../../texts";
import { Said } from "../../ui/parts";

export function Warnings(props: { list: Warning[] }) {
  if (props.list.length === 0) return <p class="quiet-line">{T.overview.noWarnings}</p>;
  return (
    <ul class="warnings" aria-label={T.overview.warnings}>
      {props.list.map((warning) => (
        <li key={warning.id} class={warning.severe ? "severe" : undefined}>
          <b>{sentence(warning.text)}</b>
          <Said text={sentence(warning.action)} />
          <a href={`#/docs/${warning.docs}`}>{T.overview.readOn}</a>
        </li>
      ))}
    </ul>
  );
}
