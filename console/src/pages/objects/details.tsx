// One object: its preview, its metadata and tags, and what can be done with it.
import { useEffect, useState } from "preact/hooks";
import { bytes, count, time } from "../../data/format";
import { wordsOf } from "../../data/http";
import { type Entry, type Head, type Tag, head, path, setTags, tags } from "../../data/s3";
import { T } from "../../texts";
import { Fault } from "../../ui/parts";
import { say } from "../../ui/toasts";
import { Preview } from "./preview";

interface Props {
  bucket: string;
  entry: Entry;
  onClose: () => void;
  onCopy: () => void;
  onLink: () => void;
  onDelete: () => void;
}

export function Details(props: Props) {
  const { bucket, entry } = props;
  const [found, setFound] = useState<Head | null>(null);
  const [words, setWords] = useState("");
  useEffect(() => {
    const leave = new AbortController();
    head(bucket, entry.key, leave.signal)
      .then(setFound)
      .catch((error: unknown) => {
        if (!leave.signal.aborted) setWords(wordsOf(error));
      });
    return () => leave.abort();
  }, [bucket, entry.key]);
  const name = entry.key.slice(entry.key.lastIndexOf("/") + 1) || entry.key;
  return (
    <aside class="details" aria-label={T.objects.detailsOf(entry.key)}>
      <header>
        <h2 title={entry.key}>{name}</h2>
        <button type="button" class="quiet" aria-label={T.close} onClick={props.onClose}>
          ×
        </button>
      </header>
      <div class="buttons">
        <a class="button" href={path(bucket, entry.key)} download={name}>
          {T.objects.download}
        </a>
        <button type="button" onClick={props.onLink}>
          {T.objects.link}
        </button>
        <button type="button" onClick={props.onCopy}>
          {T.objects.copyTo}
        </button>
        <button type="button" class="danger" onClick={props.onDelete}>
          {T.objects.remove}
        </button>
      </div>
      <Fault words={words} />
      {found ? <Preview bucket={bucket} name={entry.key} head={found} /> : null}
      {found ? <Facts entry={entry} head={found} /> : null}
      {found ? <Tags bucket={bucket} name={entry.key} /> : null}
    </aside>
  );
}

function Facts(props: { entry: Entry; head: Head }) {
  const { head: found, entry } = props;
  const rows: [string, string][] = [
    [T.objects.key, entry.key],
    [T.objects.size, `${bytes(found.size)} (${count(found.size)} B)`],
    [T.objects.type, found.type],
    [T.objects.modified, found.modified ? time(Date.parse(found.modified)) : "–"],
    ["ETag", found.etag],
  ];
  if (found.version && found.version !== "null") rows.push([T.objects.version, found.version]);
  if (found.expires) rows.push([T.objects.expires, Number.isNaN(Date.parse(found.expires)) ? found.expires : time(Date.parse(found.expires))]);
  return (
    <>
      <dl class="facts">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {found.metadata.length > 0 ? (
        <>
          <h3>{T.objects.metadata}</h3>
          <dl class="facts">
            {found.metadata.map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </div>
            ))}
          </dl>
        </>
      ) : null}
    </>
  );
}

function Tags(props: { bucket: string; name: string }) {
  const [list, setList] = useState<Tag[] | null>(null);
  const [words, setWords] = useState("");
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  useEffect(() => {
    tags(props.bucket, props.name)
      .then(setList)
      .catch((error: unknown) => setWords(wordsOf(error)));
  }, [props.bucket, props.name]);
  const save = async (next: Tag[]) => {
    try {
      await setTags(props.bucket, props.name, next);
      setList(next);
      setWords("");
      setName("");
      setValue("");
      say(T.objects.tagsSaved);
    } catch (error) {
      setWords(wordsOf(error));
    }
  };
  return (
    <section aria-label={T.objects.tags}>
      <h3>{T.objects.tags}</h3>
      <Fault words={words} />
      {list?.length ? (
        <ul class="tags">
          {list.map(([tag, of]) => (
            <li key={tag}>
              {tag}={of}
              <button type="button" class="quiet" aria-label={T.objects.removeTag(tag)} onClick={() => void save(list.filter(([other]) => other !== tag))}>
                ×
              </button>
            </li>
          ))}
        </ul>
      ) : null}
      {list ? (
        <form
          class="inline"
          onSubmit={(event) => {
            event.preventDefault();
            void save([...list.filter(([other]) => other !== name), [name, value]]);
          }}
        >
          <input aria-label={T.objects.tagName} placeholder={T.objects.tagName} value={name} onInput={(event) => setName(event.currentTarget.value)} />
          <input aria-label={T.objects.tagValue} placeholder={T.objects.tagValue} value={value} onInput={(event) => setValue(event.currentTarget.value)} />
          <button type="submit" disabled={!name}>
            {T.objects.addTag}
          </button>
        </form>
      ) : null}
    </section>
  );
}
