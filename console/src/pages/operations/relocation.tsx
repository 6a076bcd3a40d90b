// Relocation and growth.
import { useState } from "preact/hooks";
import { bytes, count, percent } from "../../data/format";
import { send, wordsOf } from "../../data/http";
import type { Sample } from "../../data/types";
import { T } from "../../texts";
import { Bar, Fault, Panel, Said } from "../../ui/parts";
import { say } from "../../ui/toasts";
import { Facts } from "./work";

export function Relocation(props: { sample: Sample; admin: boolean }) {
  const of = props.sample.background;
  const [words, setWords] = useState("");
  const pause = async () => {
    try {
      await send("POST", "/api/relocation", { paused: !of.relocation_paused });
      setWords("");
      say(of.relocation_paused ? T.operations.relocationResumed : T.operations.relocationPaused);
    } catch (error) {
      setWords(wordsOf(error));
    }
  };
  return (
    <Panel
      id="relocation"
      title={T.operations.relocation}
      aside={
        <button type="button" disabled={!props.admin} onClick={() => void pause()}>
          {of.relocation_paused ? T.operations.resume : T.operations.pause}
        </button>
      }
    >
      <Fault words={words} />
      <Facts
        rows={[
          [T.operations.state, of.relocation_paused ? T.operations.isPaused : of.groups_closed > 0 ? T.operations.isMoving : T.operations.isIdle],
          [T.operations.groups, T.operations.groupsOf(count(of.groups_closed), count(of.groups_to_empty))],
          [T.operations.toMove, bytes(of.bytes_to_move)],
          [T.operations.moving, `${bytes(of.moved_bytes_per_s)}/s`],
        ]}
      />
      <p class="hint">{T.operations.relocationText}</p>
    </Panel>
  );
}

export function Growth(props: { sample: Sample }) {
  const { room, background } = props.sample;
  return (
    <Panel id="growth" title={T.operations.growth}>
      <Bar
        label={T.operations.growth}
        total={room.cap_bytes}
        shares={[{ label: T.operations.file, value: room.file_bytes, colour: "--accent", text: percent(room.file_bytes / room.cap_bytes) }]}
      />
      <Facts
        rows={[
          [T.operations.file, bytes(room.file_bytes)],
          [T.operations.cap, bytes(room.cap_bytes)],
          [T.operations.holes, bytes(room.hole_bytes)],
          [T.operations.growing, `${bytes(background.growth_bytes_per_s)}/s`],
          [T.operations.discarded, `${bytes(background.discarded_bytes_per_s)}/s`],
        ]}
      />
      {room.cannot_grow ? <p class="warn">{room.cannot_grow}</p> : null}
      <p class="hint">
        <Said text={T.operations.growthText} /> <a href="#/docs/docs/operate/grow.md">{T.overview.readOn}</a>
      </p>
    </Panel>
  );
}
