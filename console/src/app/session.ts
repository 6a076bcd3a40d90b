// Who is signed in, and whether the server answers. A server that stops is asked once a second until it is back.
import { signal } from "@preact/signals";
import type { Session } from "../data/types";
import { T } from "../texts";

export type State = "starting" | "in" | "out";

export const state = signal<State>("starting");
export const session = signal<Session | null>(null);
// The server does not answer.
export const stopped = signal(false);
// Counts the times that the server came back: pages load their figures again.
export const returns = signal(0);
// Words above the sign-in form.
export const notice = signal("");

let probing = false;

export function csrf(): string {
  return session.value?.csrf ?? "";
}

export function seesFigures(): boolean {
  const may = session.value?.may;
  return may !== undefined && (may.admin || may.list);
}

function enter(value: Session): void {
  session.value = value;
  state.value = "in";
  notice.value = "";
}

export function sessionOver(): void {
  if (state.value === "in") notice.value = T.signIn.over;
  session.value = null;
  state.value = "out";
}

// Asks who is signed in: false if the server does not answer.
async function ask(): Promise<boolean> {
  let answer: Response;
  try {
    answer = await fetch("/api/session", { credentials: "same-origin", cache: "no-store" });
  } catch {
    return false;
  }
  if (answer.status === 401) {
    sessionOver();
    return true;
  }
  if (!answer.ok) return false;
  try {
    enter((await answer.json()) as Session);
  } catch {
    return false;
  }
  return true;
}

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));

// Called when a request got no answer, or the stream of figures ended.
export function connectionLost(): void {
  if (probing) return;
  probing = true;
  void probe().finally(() => {
    probing = false;
  });
}

async function probe(): Promise<void> {
  while (!(await ask())) {
    stopped.value = true;
    await pause(1000);
  }
  if (stopped.value) {
    stopped.value = false;
    returns.value += 1;
  }
}

export function start(): void {
  connectionLost();
}

export async function signIn(id: string, secret: string): Promise<string> {
  let answer: Response;
  try {
    answer = await fetch("/api/session", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ id, secret }),
      credentials: "same-origin",
    });
  } catch {
    connectionLost();
    return T.errors.noAnswer;
  }
  const body = (await answer.json().catch(() => ({}))) as Partial<Session> & { error?: string };
  if (!answer.ok) return body.error ?? (answer.status === 401 ? T.signIn.wrong : T.errors.status(answer.status));
  enter(body as Session);
  returns.value += 1;
  return "";
}

export async function signOut(): Promise<void> {
  try {
    await fetch("/api/session", { method: "DELETE", headers: { "x-shoal-csrf": csrf() }, credentials: "same-origin" });
  } catch {
    connectionLost();
    return;
  }
  session.value = null;
  state.value = "out";
  notice.value = T.signIn.signedOut;
}
