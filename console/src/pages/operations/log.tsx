// The newest lines of the server's log, with a filter.
import { useEffect, useRef, useState } from "preact/hooks";
import { count } from "../../data/format";
import { T } from "../../texts";
import { Choices, Empty, Fault, Panel } from "../../ui/parts";
import { usePolled } from "../../ui/polled";

type Level = "all" | "warn" | "error";

function level(line: string): "error" | "warn" | "info" {
  if (/\bERROR\b|level=error|"level":"error"/i.test(line)) return "error";
  return /\bWARN(ING)?\b|level=warn|"level":"warn"/i.test(line) ? "warn" : "info";
}

export function LogTail() {
  const [follow, setFollow] = useState(true);
  const [filter, setFilter] = useState("");
  const [most, setMost] = useState<Level>("all");
  const polled = usePolled<{ lines: string[] }>("/api/log?lines=1000", follow ? 2000 : 0);
  const box = useRef<HTMLPreElement>(null);
  const wanted = filter.toLowerCase();
  const lines = polled.value?.lines ?? [];
  const shown = lines.filter((line) => {
    const of = level(line);
    return (most === "all" || of === "error" || (most === "warn" && of === "warn")) && line.toLowerCase().includes(wanted);
  });
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [polled.value, filter, most, follow]);
  return (
    <Panel
      id="log"
      title={T.operations.log}
      wide
      aside={
        <>
          <Choices
            label={T.operations.levels}
            value={most}
            onChoice={setMost}
            choices={[
              { value: "all", label: T.operations.allLines },
              { value: "warn", label: T.operations.warnings },
              { value: "error", label: T.operations.errors },
            ]}
          />
          <input type="search" aria-label={T.operations.filter} placeholder={T.operations.filter} value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
          <label class="check">
            <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> {T.operations.follow}
          </label>
        </>
      }
    >
      <Fault words={polled.words} retry={polled.again} />
      {polled.value && shown.length === 0 ? <Empty title={lines.length === 0 ? T.operations.noLines : T.operations.noMatch} /> : null}
      {shown.length > 0 ? (
        <pre class="log" ref={box} tabIndex={0} role="group" aria-label={T.operations.log}>
          {shown.map((line, index) => (
            <div key={index} class={level(line)}>
              {line}
            </div>
          ))}
        </pre>
      ) : null}
      <p class="hint">{T.operations.logCount(count(shown.length), count(lines.length))}</p>
    </Panel>
  );
}
