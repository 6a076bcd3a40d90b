// Slow requests: for each, a bar of the places that its time went to.
import { clock, duration } from "../../data/format";
import type { SlowRequest, SlowRequests } from "../../data/types";
import { T } from "../../texts";
import { Bar, Empty, Fault, Legend, Panel, Scroll } from "../../ui/parts";
import { usePolled } from "../../ui/polled";

const SHOWN = 50;

function shares(one: SlowRequest) {
  const known = one.queue_us + one.store_us + one.log_us + one.answer_us;
  const parts: [string, number, string][] = [
    [T.puts.queue, one.queue_us, "--c3"],
    [T.puts.store, one.store_us, "--c2"],
    [T.puts.inLog, one.log_us, "--c1"],
    [T.puts.answer, one.answer_us, "--c5"],
    [T.puts.other, Math.max(0, one.total_us - known), "--muted"],
  ];
  return parts.map(([label, value, colour]) => ({ label, value, colour, text: duration(value) }));
}

function objectOf(one: SlowRequest): string {
  return one.bucket === null && one.key === null ? T.puts.objectUnknown : [one.bucket, one.key].filter(Boolean).join("/");
}

export function Slow() {
  const polled = usePolled<SlowRequests>("/api/slow", 3000);
  const found = polled.value;
  return (
    <Panel title={T.puts.slow} wide aside={found?.slow_ms ? T.puts.slowAbove(found.slow_ms) : null}>
      <Fault words={polled.words} retry={polled.again} />
      {found && found.slow_ms === null ? <Empty title={T.puts.slowOff}>{T.puts.slowOffAdvice}</Empty> : null}
      {found && found.slow_ms !== null && found.requests.length === 0 ? <Empty title={T.puts.noSlow} /> : null}
      {found && found.requests.length > 0 ? (
        <>
          <Legend items={legend} />
          <Scroll label={T.puts.slow} class="tall">
            <table class="slow">
              <thead>
                <tr>
                  <th scope="col">{T.puts.at}</th>
                  <th scope="col">{T.puts.operation}</th>
                  <th scope="col">{T.puts.object}</th>
                  <th scope="col" class="number">{T.puts.took}</th>
                  <th scope="col" class="breakdown">{T.puts.whereTime}</th>
                </tr>
              </thead>
              <tbody>
                {found.requests.slice(0, SHOWN).map((one, index) => (
                  <tr key={`${one.at_ms}-${index}`}>
                    <td>{clock(one.at_ms)}</td>
                    <td title={`${one.peer} ${one.result}`}>
                      {one.frontend} {one.operation}
                      {one.times && one.times > 1 ? ` ×${one.times}` : ""}
                    </td>
                    <td class="long" title={objectOf(one)}>
                      {objectOf(one)}
                    </td>
                    <td class="number">{duration(one.total_us)}</td>
                    <td>
                      <Bar slim label={T.puts.whereTime} total={one.total_us} shares={shares(one)} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        </>
      ) : null}
    </Panel>
  );
}

const legend = [
  { label: T.puts.queue, colour: "--c3" },
  { label: T.puts.store, colour: "--c2" },
  { label: T.puts.inLog, colour: "--c1" },
  { label: T.puts.answer, colour: "--c5" },
  { label: T.puts.other, colour: "--muted" },
];
