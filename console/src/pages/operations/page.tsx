// Operations: damage, scrub, backup, archive, relocation and growth, connections, configuration, log, report.
import { useEffect } from "preact/hooks";
import { route } from "../../app/router";
import { latest } from "../../data/live";
import { session } from "../../app/session";
import { T } from "../../texts";
import { Panel } from "../../ui/parts";
import { Waiting } from "../waiting";
import { ArchivePanel } from "./archive";
import { Configuration } from "./configuration";
import { Connections } from "./connections";
import { Damage } from "./damage";
import { LogTail } from "./log";
import { Growth, Relocation } from "./relocation";
import { Backup, Scrub } from "./work";

const PARTS = ["damage", "scrub", "backup", "archive", "relocation", "connections", "configuration", "log", "report"] as const;

export function Operations() {
  const sample = latest.value;
  const part = route.value.rest;
  const ready = sample !== null;
  useEffect(() => {
    if (!part || !ready) return;
    const panel = document.getElementById(`panel-${part}`);
    panel?.closest(".panel")?.scrollIntoView();
  }, [part, ready]);
  if (!sample) return <Waiting title={T.operations.title} />;
  const admin = session.value?.may.admin ?? false;
  return (
    <>
      <h1>{T.operations.title}</h1>
      <nav class="jump" aria-label={T.operations.parts}>
        {PARTS.map((name) => (
          <a key={name} href={`#/operations/${name}`}>
            {T.operations[name]}
          </a>
        ))}
      </nav>
      <div class="grid">
        <Damage sample={sample} />
        <Scrub sample={sample} admin={admin} />
        <Backup sample={sample} />
        <ArchivePanel />
        <Relocation sample={sample} admin={admin} />
        <Growth sample={sample} />
        <Connections />
      </div>
      <Configuration />
      <LogTail />
      <Panel id="report" title={T.operations.report} wide>
        <p>{T.operations.reportText}</p>
        <p>
          <a class="button" href="/api/report" download="">
            {T.operations.reportButton}
          </a>
        </p>
      </Panel>
    </>
  );
}
