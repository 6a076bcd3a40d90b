// Connections by frontend.
import { bytes, count } from "../../data/format";
import type { ConnectionsOf } from "../../data/types";
import { T } from "../../texts";
import { Fault, Panel, Scroll } from "../../ui/parts";
import { usePolled } from "../../ui/polled";

export function Connections() {
  const polled = usePolled<{ frontends: ConnectionsOf[] }>("/api/connections", 3000);
  return (
    <Panel id="connections" title={T.operations.connections}>
      <Fault words={polled.words} retry={polled.again} />
      {polled.value ? (
        <Scroll label={T.operations.connections}>
          <table>
            <thead>
              <tr>
                <th scope="col">{T.overview.frontend}</th>
                <th scope="col" class="number">{T.operations.open}</th>
                <th scope="col" class="number">{T.operations.opened}</th>
                <th scope="col" class="number">{T.operations.refused}</th>
                <th scope="col" class="number">{T.operations.evicted}</th>
                <th scope="col" class="number">{T.operations.overdue}</th>
                <th scope="col" class="number">{T.overview.memory}</th>
              </tr>
            </thead>
            <tbody>
              {polled.value.frontends.map((one) => (
                <tr key={one.name}>
                  <th scope="row">{T.frontends[one.name as keyof typeof T.frontends] ?? one.name}</th>
                  <td class="number">{count(one.open)}</td>
                  <td class="number">{count(one.opened)}</td>
                  <td class={one.refused > 0 ? "number warn" : "number"}>{count(one.refused)}</td>
                  <td class="number">{count(one.evicted)}</td>
                  <td class="number">{count(one.overdue)}</td>
                  <td class="number">{bytes(one.memory_bytes)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      ) : null}
    </Panel>
  );
}
