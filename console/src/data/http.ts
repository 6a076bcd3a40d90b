// Requests to the console's server: the CSRF header, the words of its errors, and what follows from 401 and from no answer.
import { T } from "../texts";
import { connectionLost, csrf, sessionOver } from "../app/session";

export class RequestError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, message: string, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export interface Ask {
  method?: string;
  body?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

// One request. An answer of an error status is returned, too; no answer throws.
export async function request(path: string, ask: Ask = {}): Promise<Response> {
  const method = ask.method ?? "GET";
  const headers: Record<string, string> = { ...ask.headers };
  if (method !== "GET" && method !== "HEAD") headers["x-shoal-csrf"] = csrf();
  let answer: Response;
  try {
    const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
    if (ask.body !== undefined) init.body = ask.body;
    if (ask.signal !== undefined) init.signal = ask.signal;
    answer = await fetch(path, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    connectionLost();
    throw new RequestError(0, T.errors.noAnswer);
  }
  if (answer.status === 401) {
    sessionOver();
    throw new RequestError(401, T.errors.sessionOver);
  }
  return answer;
}

async function errorOf(answer: Response): Promise<RequestError> {
  let words = "";
  try {
    const body: unknown = JSON.parse(await answer.text());
    if (body && typeof body === "object" && "error" in body && typeof body.error === "string") words = body.error;
  } catch {
    words = "";
  }
  return new RequestError(answer.status, words || T.errors.status(answer.status));
}

export async function getJson<V>(path: string, signal?: AbortSignal): Promise<V> {
  const answer = await request(path, signal ? { signal } : {});
  if (!answer.ok) throw await errorOf(answer);
  return (await answer.json()) as V;
}

// A request that changes something; an empty answer is `null`.
export async function send<V>(method: string, path: string, value?: unknown): Promise<V | null> {
  const ask: Ask = { method };
  if (value !== undefined) {
    ask.body = JSON.stringify(value);
    ask.headers = { "content-type": "application/json" };
  }
  const answer = await request(path, ask);
  if (!answer.ok) throw await errorOf(answer);
  const text = await answer.text();
  return text ? (JSON.parse(text) as V) : null;
}

export function wordsOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
