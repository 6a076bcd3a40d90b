// Damage that was found, and its place.
import type { Sample } from "../../data/types";
import { T } from "../../texts";
import { Fault, Panel, Scroll } from "../../ui/parts";
import { usePolled } from "../../ui/polled";

interface Found {
  losses: unknown[];
  ranges: unknown[];
}

// The server's records have fields by kind of damage: they are shown as name and value.
function words(value: unknown): string {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object") return String(value);
  return Object.entries(value)
    .map(([name, of]) => `${name.replaceAll("_", " ")} ${typeof of === "object" ? JSON.stringify(of) : String(of)}`)
    .join(", ");
}

export function Damage(props: { sample: Sample }) {
  const polled = usePolled<Found>("/api/damage", 10_000);
  const found = polled.value;
  const list = found ? [...found.losses.map((one) => ({ kind: T.operations.loss, one })), ...found.ranges.map((one) => ({ kind: T.operations.range, one }))] : [];
  const { damage } = props.sample;
  const none = damage.ranges + damage.losses === 0 && list.length === 0;
  return (
    <Panel id="damage" title={T.operations.damage}>
      <Fault words={polled.words} retry={polled.again} />
      {none ? (
        <p class="good-line">{T.operations.noDamage}</p>
      ) : (
        <>
          <p class="warn">{T.operations.damageCounts(damage.losses, damage.ranges)}</p>
          <Scroll label={T.operations.damage} class="short">
            <table>
              <tbody>
                {list.slice(0, 200).map((row, index) => (
                  <tr key={index}>
                    <th scope="row">{row.kind}</th>
                    <td>{words(row.one)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
          <p>
            <a href="#/docs/docs/repair.md">{T.overview.readOn}</a>
          </p>
        </>
      )}
    </Panel>
  );
}
