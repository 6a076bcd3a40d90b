// The census: a walk over all trees, which a page starts and keeps alive by asking about it.
import { useEffect, useState } from "preact/hooks";
import { count, time } from "../data/format";
import { send, wordsOf } from "../data/http";
import type { Census } from "../data/types";
import { T } from "../texts";
import { Fault } from "./parts";
import { usePolled } from "./polled";

const EVERY_MS = 1000;

export interface CensusWork {
  value: Census | null;
  words: string;
  start: () => void;
  stop: () => void;
}

// `buckets`: with the sizes of buckets, once the walk is over.
export function useCensus(wanted: boolean, buckets: boolean): CensusWork {
  const [watched, setWatched] = useState(false);
  const [words, setWords] = useState("");
  const path = buckets && !watched ? "/api/census?buckets=true" : "/api/census";
  const polled = usePolled<Census>(wanted ? path : null, watched ? EVERY_MS : 0);
  const running = polled.value?.running ?? false;
  useEffect(() => setWatched(running), [running]);
  const ask = async (method: string) => {
    try {
      await send(method, "/api/census");
      setWords("");
      polled.again();
    } catch (error) {
      setWords(wordsOf(error));
    }
  };
  return { value: polled.value, words: words || polled.words, start: () => void ask("POST"), stop: () => void ask("DELETE") };
}

export function CensusLine(props: { work: CensusWork; texts: { none: string; start: string; taken: (at: string) => string }; objects: number | undefined }) {
  const { work, texts } = props;
  const { value } = work;
  if (!value) return <Fault words={work.words} />;
  return (
    <>
      <Fault words={work.words} />
      <p class="hint" role="status">
        {value.running ? T.census.running(count(value.objects), props.objects === undefined ? "" : count(props.objects)) : value.taken ? texts.taken(time(value.taken.ended_ms)) : texts.none}{" "}
        {value.running ? (
          <button type="button" class="link" onClick={work.stop}>
            {T.census.stop}
          </button>
        ) : (
          <button type="button" class="link" onClick={work.start}>
            {value.taken ? T.census.again : texts.start}
          </button>
        )}
      </p>
    </>
  );
}
