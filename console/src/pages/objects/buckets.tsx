// The buckets. The store keeps no sums by bucket: a listing counts one exactly, a census all about.
import { useEffect, useRef, useState } from "preact/hooks";
import { returns, seesFigures } from "../../app/session";
import { objectsHref } from "../../app/router";
import { bytes, count, time } from "../../data/format";
import { wordsOf } from "../../data/http";
import { latest } from "../../data/live";
import { type Bucket, below, buckets, createBucket, deleteBucket } from "../../data/s3";
import { T } from "../../texts";
import { CensusLine, useCensus } from "../../ui/census";
import { ActionDialog } from "../../ui/dialog";
import { Empty, Fault, Panel, Scroll } from "../../ui/parts";
import { say } from "../../ui/toasts";

interface Sum {
  objects: number;
  bytes: number;
  running: boolean;
}

interface About {
  objects: number;
  bytes: number;
}

interface Sizes {
  of: Map<string, About>;
  // Every bucket was counted apart.
  all: boolean;
}

export function Buckets() {
  const [list, setList] = useState<Bucket[] | null>(null);
  const [words, setWords] = useState("");
  const [creating, setCreating] = useState(false);
  const [doomed, setDoomed] = useState("");

  const load = async () => {
    try {
      setList(await buckets());
      setWords("");
    } catch (error) {
      setWords(wordsOf(error));
    }
  };
  useEffect(() => void load(), [returns.value]);
  const census = useCensus(seesFigures(), true);
  const kept = useRef<Sizes | null>(null);
  const taken = census.value?.taken;
  if (taken?.buckets) kept.current = { of: new Map(taken.buckets.map((size) => [size.name, size])), all: taken.others.objects === 0 };

  return (
    <>
      <h1>{T.objects.title}</h1>
      <Panel
        title={T.objects.buckets}
        aside={
          <button type="button" class="primary" onClick={() => setCreating(true)}>
            {T.objects.createBucket}
          </button>
        }
      >
        <Fault words={words} retry={() => void load()} />
        {list && list.length > 0 && seesFigures() ? <CensusLine work={census} texts={T.objects.census} objects={latest.value?.objects.count} /> : null}
        {list && list.length > 0 ? (
          <Scroll label={T.objects.buckets}>
            <table>
              <thead>
                <tr>
                  <th scope="col">{T.objects.bucket}</th>
                  <th scope="col">{T.objects.created}</th>
                  <th scope="col" class="number">
                    {T.objects.size}
                  </th>
                  <th scope="col" class="actions">
                    {T.actions}
                  </th>
                </tr>
              </thead>
              <tbody>
                {list.map((bucket) => (
                  <BucketRow key={bucket.name} bucket={bucket} about={aboutOf(kept.current, bucket.name)} onDelete={() => setDoomed(bucket.name)} />
                ))}
              </tbody>
            </table>
          </Scroll>
        ) : null}
        {list && list.length === 0 ? <Empty title={T.objects.noBuckets}>{T.objects.noBucketsAdvice}</Empty> : null}
        <OpenByName />
      </Panel>
      {creating ? <CreateBucket onClose={() => setCreating(false)} onDone={load} /> : null}
      {doomed ? (
        <ActionDialog
          title={T.objects.deleteBucketTitle(doomed)}
          button={T.objects.deleteBucket}
          danger
          onClose={() => setDoomed("")}
          run={async () => {
            await deleteBucket(doomed);
            say(T.objects.bucketDeleted(doomed));
            await load();
          }}
        >
          <p>{T.objects.deleteBucketText}</p>
        </ActionDialog>
      ) : null}
    </>
  );
}

// The size of a bucket by the census: one that it did not meet is empty, unless it counted some together.
function aboutOf(sizes: Sizes | null, name: string): About | null {
  return sizes?.of.get(name) ?? (sizes?.all ? { objects: 0, bytes: 0 } : null);
}

function BucketRow(props: { bucket: Bucket; about: About | null; onDelete: () => void }) {
  const [sum, setSum] = useState<Sum | null>(null);
  const { bucket } = props;
  const add = async () => {
    let objects = 0;
    let size = 0;
    setSum({ objects, bytes: size, running: true });
    try {
      for await (const page of below(bucket.name, "")) {
        objects += page.length;
        size += page.reduce((total, entry) => total + entry.size, 0);
        setSum({ objects, bytes: size, running: true });
      }
      setSum({ objects, bytes: size, running: false });
    } catch (error) {
      setSum(null);
      say(wordsOf(error), true);
    }
  };
  return (
    <tr>
      <td>
        <a href={objectsHref(bucket.name)}>{bucket.name}</a>
      </td>
      <td>{bucket.created ? time(Date.parse(bucket.created)) : "–"}</td>
      <td class="number">
        {sum ? (
          <span aria-live="polite">
            {sum.running ? T.objects.atLeast : ""} {bytes(sum.bytes)} · {T.objects.objects(count(sum.objects))}
          </span>
        ) : (
          <>
            {props.about ? <span>{T.objects.about(bytes(props.about.bytes), T.objects.objects(count(props.about.objects)))} </span> : null}
            <button type="button" class="link" onClick={() => void add()}>
              {props.about ? T.objects.countExactly : T.objects.countNow}
            </button>
          </>
        )}
      </td>
      <td class="actions">
        <button type="button" aria-label={T.objects.deleteBucketTitle(bucket.name)} onClick={props.onDelete}>
          {T.objects.remove}
        </button>
      </td>
    </tr>
  );
}

function OpenByName() {
  const [name, setName] = useState("");
  return (
    <form
      class="inline"
      onSubmit={(event) => {
        event.preventDefault();
        if (name) location.hash = objectsHref(name);
      }}
    >
      <label>
        <span>{T.objects.openByName}</span>
        <input value={name} onInput={(event) => setName(event.currentTarget.value)} placeholder="photos" />
      </label>
      <button type="submit" disabled={!name}>
        {T.objects.open}
      </button>
    </form>
  );
}

function CreateBucket(props: { onClose: () => void; onDone: () => Promise<void> }) {
  const [name, setName] = useState("");
  return (
    <ActionDialog
      title={T.objects.createBucket}
      button={T.objects.create}
      disabled={!name}
      onClose={props.onClose}
      run={async () => {
        await createBucket(name);
        say(T.objects.bucketCreated(name));
        await props.onDone();
      }}
    >
      <label class="field">
        <span>{T.objects.bucketName}</span>
        <input autoFocus value={name} onInput={(event) => setName(event.currentTarget.value)} autocomplete="off" spellcheck={false} />
      </label>
      <p class="hint">{T.objects.bucketNameHint}</p>
    </ActionDialog>
  );
}
