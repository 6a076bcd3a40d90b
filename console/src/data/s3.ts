// Operations of S3 that the pages use, with the session in place of a signature.
import { T } from "../texts";
import { RequestError, type Ask, request } from "./http";
import { all, child, escape, parse, text, unquote } from "./xml";

export interface Bucket {
  name: string;
  created: string;
}

export interface Entry {
  key: string;
  size: number;
  modified: string;
}

export interface Listing {
  folders: string[];
  entries: Entry[];
  next: string | null;
}

export interface Head {
  size: number;
  type: string;
  modified: string;
  etag: string;
  version: string;
  expires: string;
  metadata: [string, string][];
}

export function path(bucket: string, key = "", query: Record<string, string> = {}): string {
  const names = Object.entries(query).map(([name, value]) => (value === "" ? name : `${name}=${encodeURIComponent(value)}`));
  const address = `/s3/${bucket ? `${encodeURIComponent(bucket)}` : ""}${key ? `/${key.split("/").map(encodeURIComponent).join("/")}` : ""}`;
  return names.length ? `${address}?${names.join("&")}` : address;
}

// Browsers resolve `.` and `..` in addresses, even encoded: such keys are out of their reach.
export function reachable(key: string): boolean {
  return !key.split("/").some((part) => part === "." || part === "..");
}

export async function errorOf(answer: Response): Promise<RequestError> {
  const body = await answer.text().catch(() => "");
  if (body.trimStart().startsWith("{")) {
    const value = JSON.parse(body) as { error?: string };
    return new RequestError(answer.status, value.error ?? T.errors.status(answer.status));
  }
  const document = body.includes("<Error") ? parse(body) : null;
  const code = document ? text(document, "Code") : "";
  const message = document ? text(document, "Message") : "";
  const advice = T.errors.s3[code as keyof typeof T.errors.s3] ?? "";
  return new RequestError(answer.status, [message || T.errors.status(answer.status), advice].filter(Boolean).join(" "), code);
}

export async function call(address: string, ask: Ask = {}): Promise<Response> {
  const answer = await request(address, ask);
  if (!answer.ok) throw await errorOf(answer);
  return answer;
}

async function document(address: string, ask: Ask = {}): Promise<Element> {
  return parse(await (await call(address, ask)).text());
}

export async function buckets(): Promise<Bucket[]> {
  const result = await document("/s3/");
  const list = child(result, "Buckets");
  return list ? all(list, "Bucket").map((bucket) => ({ name: text(bucket, "Name"), created: text(bucket, "CreationDate") })) : [];
}

export interface ListAsk {
  bucket: string;
  prefix: string;
  token?: string | null;
  flat?: boolean;
  signal?: AbortSignal;
}

export async function list(ask: ListAsk): Promise<Listing> {
  const query: Record<string, string> = { "list-type": "2", "encoding-type": "url", "max-keys": "1000", prefix: ask.prefix };
  if (!ask.flat) query["delimiter"] = "/";
  if (ask.token) query["continuation-token"] = ask.token;
  const result = await document(path(ask.bucket, "", query), ask.signal ? { signal: ask.signal } : {});
  return {
    folders: all(result, "CommonPrefixes").map((common) => unquote(text(common, "Prefix"))),
    entries: all(result, "Contents").map((entry) => ({
      key: unquote(text(entry, "Key")),
      size: Number(text(entry, "Size")),
      modified: text(entry, "LastModified"),
    })),
    next: text(result, "IsTruncated") === "true" ? text(result, "NextContinuationToken") : null,
  };
}

// Every object below a prefix, page by page.
export async function* below(bucket: string, prefix: string, signal?: AbortSignal): AsyncGenerator<Entry[]> {
  let token: string | null = null;
  do {
    const ask: ListAsk = { bucket, prefix, token, flat: true };
    if (signal) ask.signal = signal;
    const page: Listing = await list(ask);
    yield page.entries;
    token = page.next;
  } while (token);
}

export async function head(bucket: string, key: string, signal?: AbortSignal): Promise<Head> {
  const answer = await call(path(bucket, key), signal ? { method: "HEAD", signal } : { method: "HEAD" });
  const of = (name: string) => answer.headers.get(name) ?? "";
  const metadata: [string, string][] = [];
  answer.headers.forEach((value, name) => {
    if (name.startsWith("x-amz-meta-")) metadata.push([name.slice("x-amz-meta-".length), value]);
  });
  const expiry = /expiry-date="([^"]+)"/.exec(of("x-amz-expiration"));
  return {
    size: Number(of("content-length")),
    type: of("content-type"),
    modified: of("last-modified"),
    etag: of("etag").replace(/"/g, ""),
    version: of("x-amz-version-id"),
    expires: expiry?.[1] ?? of("x-shoal-expires"),
    metadata,
  };
}

export async function exists(bucket: string, key: string): Promise<boolean> {
  const answer = await request(path(bucket, key), { method: "HEAD" });
  return answer.ok;
}

export type Tag = [string, string];

export async function tags(bucket: string, key: string): Promise<Tag[]> {
  const result = await document(path(bucket, key, { tagging: "" }));
  const set = child(result, "TagSet");
  return set ? all(set, "Tag").map((tag) => [text(tag, "Key"), text(tag, "Value")]) : [];
}

export async function setTags(bucket: string, key: string, list: Tag[]): Promise<void> {
  const body = list.map(([name, value]) => `<Tag><Key>${escape(name)}</Key><Value>${escape(value)}</Value></Tag>`).join("");
  await call(path(bucket, key, { tagging: "" }), { method: "PUT", body: `<Tagging><TagSet>${body}</TagSet></Tagging>` });
}

export async function remove(bucket: string, key: string): Promise<void> {
  await call(path(bucket, key), { method: "DELETE" });
}

export async function copy(bucket: string, key: string, toBucket: string, toKey: string): Promise<void> {
  const source = `/${encodeURIComponent(bucket)}/${key.split("/").map(encodeURIComponent).join("/")}`;
  const answer = await call(path(toBucket, toKey), { method: "PUT", headers: { "x-amz-copy-source": source } });
  const body = await answer.text();
  if (body.includes("<Error")) throw new RequestError(500, text(parse(body), "Message"), text(parse(body), "Code"));
}

export async function createBucket(bucket: string): Promise<void> {
  await call(path(bucket), { method: "PUT" });
}

export async function deleteBucket(bucket: string): Promise<void> {
  await call(path(bucket), { method: "DELETE" });
}

export async function startUpload(bucket: string, key: string, type: string): Promise<string> {
  const headers = { "content-type": type || "application/octet-stream" };
  return text(await document(path(bucket, key, { uploads: "" }), { method: "POST", headers }), "UploadId");
}

export interface Part {
  number: number;
  size: number;
  etag: string;
}

// The parts that the server has. A gone upload throws with the code NoSuchUpload.
export async function parts(bucket: string, key: string, upload: string): Promise<Part[]> {
  const found: Part[] = [];
  let marker = "";
  do {
    const query: Record<string, string> = { uploadId: upload, "max-parts": "1000" };
    if (marker) query["part-number-marker"] = marker;
    const result = await document(path(bucket, key, query));
    for (const part of all(result, "Part")) {
      found.push({ number: Number(text(part, "PartNumber")), size: Number(text(part, "Size")), etag: text(part, "ETag") });
    }
    marker = text(result, "IsTruncated") === "true" ? text(result, "NextPartNumberMarker") : "";
  } while (marker);
  return found;
}

// Throws with the status 412 if there is an object, unless it is to be replaced: the store decides that together with the write.
export async function completeUpload(bucket: string, key: string, upload: string, list: Part[], replace: boolean): Promise<void> {
  const body = list
    .map((part) => `<Part><PartNumber>${part.number}</PartNumber><ETag>${escape(part.etag)}</ETag></Part>`)
    .join("");
  const answer = await call(path(bucket, key, { uploadId: upload }), {
    method: "POST",
    headers: replace ? {} : { "if-none-match": "*" },
    body: `<CompleteMultipartUpload>${body}</CompleteMultipartUpload>`,
  });
  const said = await answer.text();
  if (said.includes("<Error")) throw new RequestError(500, text(parse(said), "Message"), text(parse(said), "Code"));
}

export async function abortUpload(bucket: string, key: string, upload: string): Promise<void> {
  await call(path(bucket, key, { uploadId: upload }), { method: "DELETE" });
}
