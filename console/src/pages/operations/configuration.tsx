// The configuration in force, first of all its differences from the defaults.
import { useState } from "preact/hooks";
import type { Config } from "../../data/types";
import { T } from "../../texts";
import { Choices, Empty, Fault, Panel, Scroll } from "../../ui/parts";
import { usePolled } from "../../ui/polled";

export function Configuration() {
  const polled = usePolled<Config>("/api/config", 0);
  const [all, setAll] = useState(0);
  const options = polled.value?.options;
  const lines = polled.value?.lines;
  const differs = options?.some((one) => one.is_default) ?? false;
  const defaults = options?.some((one) => one.default !== null) ?? false;
  const rows = options?.filter((one) => all === 1 || !one.is_default) ?? [];
  return (
    <Panel
      id="configuration"
      title={T.operations.configuration}
      wide
      aside={
        differs ? (
          <Choices
            label={T.operations.configuration}
            value={all}
            onChoice={setAll}
            choices={[
              { value: 0, label: T.operations.changed },
              { value: 1, label: T.operations.all },
            ]}
          />
        ) : (
          T.operations.onlySet
        )
      }
    >
      <Fault words={polled.words} retry={polled.again} />
      {options && rows.length === 0 ? <Empty title={T.operations.allDefault} /> : null}
      {options && rows.length > 0 ? (
        <Scroll label={T.operations.configuration} class="tall">
          <table>
            <thead>
              <tr>
                <th scope="col">{T.operations.option}</th>
                <th scope="col">{T.operations.value}</th>
                {defaults ? <th scope="col">{T.operations.default}</th> : null}
              </tr>
            </thead>
            <tbody>
              {rows.map((one) => (
                <tr key={one.name} class={one.is_default ? "" : "differs"}>
                  <th scope="row">{one.name}</th>
                  <td>{one.value}</td>
                  {defaults ? <td>{one.default ?? "–"}</td> : null}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      ) : null}
      {lines ? (
        <pre tabIndex={0} role="group" aria-label={T.operations.configuration}>
          {lines.join("\n")}
        </pre>
      ) : null}
    </Panel>
  );
}
