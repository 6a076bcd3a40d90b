// A real `shoal serve` in a folder of its own, and requests to its console from outside of a browser.
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

export const SHOAL = resolve(process.env["SHOAL"] ?? join(import.meta.dirname, "../../target/debug/shoal"));
const FIRST_PORT = Number(process.env["CONSOLE_PORT"] ?? 7714);

export interface Secret {
  id: string;
  secret: string;
}

export class Server {
  private made = "";
  readonly base = `http://127.0.0.1:${FIRST_PORT}`;
  readonly redisPort = FIRST_PORT + 3;
  private child: ChildProcess | null = null;
  private readonly more: string[];

  constructor(more: string[] = []) {
    this.more = more;
  }

  // A worker that runs none of a file's tests makes no folder.
  get folder(): string {
    if (!this.made) this.made = mkdtempSync(join(process.env["CONSOLE_TMP"] ?? tmpdir(), "shoal-console-"));
    return this.made;
  }

  async start(): Promise<void> {
    const at = (n: number) => `127.0.0.1:${FIRST_PORT + n}`;
    const names = ["--data", "shoal.data", "--size", "8GiB", "--console", at(0), "--listen", at(1), "--s3", at(2), "--resp", at(3), "--resp-bucket", "many", "--metrics", at(4)];
    const log = openSync(join(this.folder, "serve.log"), "a");
    this.child = spawn(SHOAL, ["serve", ...names, ...this.more], { cwd: this.folder, stdio: ["ignore", log, log] });
    for (let tried = 0; ; tried += 1) {
      try {
        await fetch(`${this.base}/api/session`);
        return;
      } catch (error) {
        if (tried > 300 || this.child.exitCode !== null) {
          const said = readFileSync(join(this.folder, "serve.log"), "utf8").slice(-2000);
          throw new Error(`the server did not start: ${said}`, { cause: error });
        }
        await new Promise((done) => setTimeout(done, 100));
      }
    }
  }

  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    const child = this.child;
    this.child = null;
    if (!child || child.exitCode !== null) return;
    const ended = new Promise((done) => child.once("exit", done));
    child.kill(signal);
    await ended;
  }

  async end(): Promise<void> {
    await this.stop("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true });
  }

  // A key of the file of keys, made with the command.
  key(name: string, grant: string): Secret {
    const words = ["key", "create", "--json", "--key-file", "shoal.keys", "--name", name, "--allow", grant];
    const { id, secret } = JSON.parse(execFileSync(SHOAL, words, { cwd: this.folder, encoding: "utf8" })) as Secret;
    return { id, secret };
  }

  // SETs over the Redis protocol, in one pipeline: objects of the bucket `many`.
  async fill(keys: Iterable<string>, value: string): Promise<void> {
    const socket = connect(this.redisPort, "127.0.0.1");
    let sent = 0;
    let answered = 0;
    const done = new Promise<void>((ready, fail) => {
      socket.on("error", fail);
      socket.on("data", (data) => {
        for (const byte of data) if (byte === 0x0a) answered += 1;
        if (socket.writableEnded && answered >= sent) ready();
      });
      socket.on("close", () => (answered >= sent ? ready() : fail(new Error(`${answered} of ${sent} SETs were answered`))));
    });
    for (const key of keys) {
      sent += 1;
      const text = `*3\r\n$3\r\nSET\r\n$${Buffer.byteLength(key)}\r\n${key}\r\n$${value.length}\r\n${value}\r\n`;
      if (!socket.write(text)) await new Promise((go) => socket.once("drain", go));
    }
    socket.end();
    await done;
  }

  async connect(secret?: Secret): Promise<Client> {
    const client = new Client(this.base);
    await client.enter(secret);
    return client;
  }
}

// A session without a browser.
export class Client {
  private readonly base: string;
  private csrf = "";
  private cookie = "";

  constructor(base: string) {
    this.base = base;
  }

  async enter(secret?: Secret): Promise<void> {
    const init: RequestInit = secret ? { method: "POST", body: JSON.stringify(secret), headers: { "content-type": "application/json" } } : {};
    const answer = await fetch(`${this.base}/api/session`, init);
    if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
    this.csrf = ((await answer.json()) as { csrf: string }).csrf;
    this.cookie = answer.headers.get("set-cookie")?.split(";")[0] ?? "";
  }

  ask(method: string, path: string, body?: BodyInit, headers: Record<string, string> = {}): Promise<Response> {
    const init: RequestInit = { method, headers: { "x-shoal-csrf": this.csrf, ...(this.cookie ? { cookie: this.cookie } : {}), ...headers } };
    if (body !== undefined) init.body = body;
    return fetch(this.base + path, init);
  }

  async must(method: string, path: string, body?: BodyInit, headers: Record<string, string> = {}): Promise<string> {
    const answer = await this.ask(method, path, body, headers);
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text;
  }

  // Puts and gets until the returned function is called.
  load(bucket: string): () => Promise<number> {
    let going = true;
    let count = 0;
    const worker = async (number: number) => {
      while (going) {
        const path = `/s3/${bucket}/load/${number}-${count % 500}`;
        await this.must("PUT", path, "x".repeat(2000));
        await this.must("GET", path);
        count += 2;
      }
    };
    const workers = [worker(1), worker(2), worker(3), worker(4)];
    return async () => {
      going = false;
      await Promise.all(workers);
      return count;
    };
  }
}
