// A page of the documentation, as the server has it for its version.
import { useEffect, useState } from "preact/hooks";
import { route } from "../../app/router";
import { request, wordsOf } from "../../data/http";
import { T } from "../../texts";
import { Fault } from "../../ui/parts";
import { Markdown } from "./markdown";

export function Docs() {
  const [path = "", anchor = ""] = route.value.rest.split("#");
  const [text, setText] = useState("");
  const [words, setWords] = useState("");
  useEffect(() => {
    const leave = new AbortController();
    setText("");
    const read = async () => {
      const answer = await request(`/${path}`, { signal: leave.signal });
      if (!answer.ok) throw new Error(T.docs.missing(path));
      setText(await answer.text());
      setWords("");
    };
    read().catch((error: unknown) => {
      if (!leave.signal.aborted) setWords(wordsOf(error));
    });
    return () => leave.abort();
  }, [path]);
  useEffect(() => {
    if (text && anchor) document.getElementById(`docs-${anchor}`)?.scrollIntoView();
  }, [text, anchor]);
  return (
    <article class="docs">
      <Fault words={words} />
      {text ? <Markdown text={text} path={path} /> : null}
    </article>
  );
}
