// The queue of uploads. Small files are one PUT, files above 16 MiB are sent in parts, and parts that the server has are not sent again.
import { signal } from "@preact/signals";
import { stopped } from "../../../app/session";
import { RequestError, wordsOf } from "../../../data/http";
import { type Part, completeUpload, exists, head, parts, path, startUpload } from "../../../data/s3";
import { T } from "../../../texts";
import { forget, recall, remember, type Remembered } from "./remembered";
import { put } from "./sending";

export type Progress = "waiting" | "sending" | "paused" | "exists" | "done" | "failed" | "stopped";

export interface Upload {
  id: number;
  bucket: string;
  key: string;
  file: File;
  progress: Progress;
  sent: number;
  // Bytes that an earlier try sent.
  resumed: number;
  words: string;
  replace: boolean;
  abort: AbortController;
}

const IN_PARTS = 16 * 1024 * 1024;
const PART = 8 * 1024 * 1024;
const PARTS_MOST = 10_000;
const AT_ONCE = 3;
const TRIES = 5;

export const uploads = signal<Upload[]>([]);
// Counts the objects that arrived, so that lists show them.
export const arrived = signal(0);

let next = 1;
let running = 0;

function changed(): void {
  uploads.value = [...uploads.value];
}

export function add(bucket: string, prefix: string, files: { name: string; file: File }[]): void {
  const made = files.map(({ name, file }): Upload => {
    next += 1;
    const abort = new AbortController();
    return { id: next, bucket, key: prefix + name, file, progress: "waiting", sent: 0, resumed: 0, words: "", replace: false, abort };
  });
  uploads.value = [...uploads.value, ...made];
  pump();
}

export function replace(chosen: Upload[]): void {
  for (const upload of chosen) {
    upload.replace = true;
    upload.progress = "waiting";
  }
  changed();
  pump();
}

export function retry(upload: Upload): void {
  upload.abort = new AbortController();
  upload.progress = "waiting";
  upload.words = "";
  changed();
  pump();
}

// Stops an upload. Parts that arrived stay, and the same file continues there.
export function stop(upload: Upload): void {
  upload.abort.abort();
  if (upload.progress === "waiting" || upload.progress === "exists") upload.progress = "stopped";
  changed();
}

export function clear(): void {
  uploads.value = uploads.value.filter((upload) => !["done", "failed", "stopped"].includes(upload.progress));
}

function pump(): void {
  while (running < AT_ONCE) {
    const upload = uploads.value.find((one) => one.progress === "waiting");
    if (!upload) return;
    upload.progress = "sending";
    running += 1;
    void run(upload).finally(() => {
      running -= 1;
      changed();
      pump();
    });
  }
  changed();
}

async function run(upload: Upload): Promise<void> {
  try {
    await (upload.file.size > IN_PARTS ? inParts(upload) : whole(upload));
    upload.progress = "done";
    upload.sent = upload.file.size;
    arrived.value += 1;
  } catch (error) {
    if (upload.abort.signal.aborted) upload.progress = "stopped";
    else if (error instanceof RequestError && error.status === 412) upload.progress = "exists";
    else {
      upload.progress = "failed";
      upload.words = wordsOf(error);
    }
  }
}

async function whole(upload: Upload): Promise<void> {
  const headers: Record<string, string> = { "content-type": upload.file.type || "application/octet-stream" };
  if (!upload.replace) headers["if-none-match"] = "*";
  await patiently(upload, () =>
    put(path(upload.bucket, upload.key), upload.file, headers, upload.abort.signal, (bytes) => {
      upload.sent = bytes;
      changed();
    }),
  );
}

// Tries again after errors that pass: no answer, too busy. A stopped server is waited for.
async function patiently<V>(upload: Upload, work: () => Promise<V>): Promise<V> {
  for (let tried = 1; ; tried += 1) {
    try {
      return await work();
    } catch (error) {
      const passing = error instanceof RequestError && (error.status === 0 || error.status === 503 || error.status === 429);
      if (!passing || tried >= TRIES || upload.abort.signal.aborted) throw error;
      upload.progress = "paused";
      upload.words = T.objects.waits;
      changed();
      await until(upload.abort.signal, 400 * 2 ** tried);
      upload.progress = "sending";
      upload.words = "";
    }
  }
}

async function until(signal_: AbortSignal, ms: number): Promise<void> {
  await new Promise((done) => setTimeout(done, ms));
  while (stopped.value && !signal_.aborted) await new Promise((done) => setTimeout(done, 250));
}

function partSize(size: number): number {
  let part = PART;
  while (Math.ceil(size / part) > PARTS_MOST) part *= 2;
  return part;
}

// The upload to continue, and the parts that it has; a new one if there is none. An object that is to be kept is found before parts are sent:
// one that another client stored since the upload was broken off, too.
async function opened(upload: Upload): Promise<{ open: Remembered; have: Map<number, Part> }> {
  if (!upload.replace && (await exists(upload.bucket, upload.key))) throw new RequestError(412, T.objects.present);
  const past = recall(upload.bucket, upload.key, upload.file);
  if (past) {
    try {
      const found = await parts(upload.bucket, upload.key, past.upload);
      return { open: past, have: new Map(found.map((part) => [part.number, part])) };
    } catch (error) {
      if (!(error instanceof RequestError) || error.code !== "NoSuchUpload") throw error;
      forget(upload.bucket, upload.key);
    }
  }
  const id = await startUpload(upload.bucket, upload.key, upload.file.type);
  const open: Remembered = {
    bucket: upload.bucket,
    key: upload.key,
    upload: id,
    size: upload.file.size,
    modified: upload.file.lastModified,
    part: partSize(upload.file.size),
  };
  remember(open);
  return { open, have: new Map() };
}

async function inParts(upload: Upload): Promise<void> {
  const { open, have } = await patiently(upload, () => opened(upload));
  const total = Math.ceil(upload.file.size / open.part);
  const list: Part[] = [];
  const wanted: number[] = [];
  for (let number = 1; number <= total; number += 1) {
    const size = Math.min(open.part, upload.file.size - (number - 1) * open.part);
    const part = have.get(number);
    if (part && part.size === size) list.push(part);
    else wanted.push(number);
  }
  upload.resumed = list.reduce((sum, part) => sum + part.size, 0);
  const moving = new Map<number, number>();
  const count = () => {
    upload.sent = list.reduce((sum, part) => sum + part.size, 0) + [...moving.values()].reduce((sum, n) => sum + n, 0);
    changed();
  };
  count();
  const worker = async () => {
    for (let number = wanted.shift(); number !== undefined; number = wanted.shift()) {
      const at = number;
      const body = upload.file.slice((at - 1) * open.part, at * open.part);
      const address = path(upload.bucket, upload.key, { partNumber: String(at), uploadId: open.upload });
      const sent = await patiently(upload, () =>
        put(address, body, {}, upload.abort.signal, (bytes) => {
          moving.set(at, bytes);
          count();
        }),
      );
      moving.delete(at);
      list.push({ number: at, size: body.size, etag: sent.etag });
      count();
    }
  };
  const careful = () =>
    worker().catch((error: unknown) => {
      wanted.length = 0;
      throw error;
    });
  await Promise.all([careful(), careful(), careful()]);
  list.sort((a, b) => a.number - b.number);
  await patiently(upload, () => complete(upload, open, list));
  forget(upload.bucket, upload.key);
}

// An answer that was lost leaves no upload, and the object.
async function complete(upload: Upload, open: Remembered, list: Part[]): Promise<void> {
  try {
    await completeUpload(upload.bucket, upload.key, open.upload, list, upload.replace);
  } catch (error) {
    const gone = error instanceof RequestError && error.code === "NoSuchUpload";
    if (!gone) throw error;
    forget(upload.bucket, upload.key);
    if ((await head(upload.bucket, upload.key)).size !== upload.file.size) throw error;
  }
}
