// A value of the server that is asked for again and again while its page is shown.
import { useEffect, useState } from "preact/hooks";
import { returns, stopped } from "../app/session";
import { getJson, wordsOf } from "../data/http";

export interface Polled<V> {
  value: V | null;
  words: string;
  again: () => void;
}

export function usePolled<V>(path: string | null, everyMs: number): Polled<V> {
  const [value, setValue] = useState<V | null>(null);
  const [words, setWords] = useState("");
  const [asked, setAsked] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const leave = new AbortController();
    let timer = 0;
    const ask = async () => {
      if (!stopped.value && !document.hidden) {
        try {
          const answer = await getJson<V>(path, leave.signal);
          setValue(answer);
          setWords("");
        } catch (error) {
          if (leave.signal.aborted) return;
          setWords(wordsOf(error));
        }
      }
      if (everyMs > 0 && !leave.signal.aborted) timer = window.setTimeout(() => void ask(), everyMs);
    };
    void ask();
    return () => {
      leave.abort();
      clearTimeout(timer);
    };
  }, [path, everyMs, asked, returns.value]);
  return { value, words, again: () => setAsked((n) => n + 1) };
}
