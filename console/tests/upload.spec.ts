import { createHash, randomBytes } from "node:crypto";
import { closeSync, openSync, writeSync } from "node:fs";
import { join } from "node:path";
import { Server, type Client } from "./server";
import { expect, expected, open, test } from "./page";

const MIB = 1024 * 1024;
const SIZE = Number(process.env["CONSOLE_UPLOAD_MIB"] ?? 1024);
const server = new Server();
let client: Client;

test.beforeAll(async () => {
  await server.start();
  client = await server.connect();
  await client.must("PUT", "/s3/films");
});

test.afterAll(() => server.end());

// A file of `mib` MiB, each of them different, and its checksum.
function make(name: string, mib: number): { path: string; sum: string } {
  const path = join(server.folder, name);
  const file = openSync(path, "w");
  const block = randomBytes(MIB);
  const hash = createHash("sha256");
  for (let n = 0; n < mib; n += 1) {
    block.writeUInt32LE(n, 0);
    writeSync(file, block);
    hash.update(block);
  }
  closeSync(file);
  return { path, sum: hash.digest("hex") };
}

async function sumOf(key: string): Promise<string> {
  const answer = await client.ask("GET", `/s3/films/${key}`);
  const hash = createHash("sha256");
  if (answer.body) for await (const chunk of answer.body) hash.update(chunk);
  return hash.digest("hex");
}

test(`an upload of ${SIZE} MiB is broken off, and the same file continues it`, async ({ page }) => {
  test.setTimeout(600_000);
  const { path, sum } = make("large.bin", SIZE);
  const field = page.getByLabel("Upload files");
  await open(page, server.base, "objects/films/");
  await field.setInputFiles(path);
  // More than the three parts of 8 MiB that are on their way at a time: some are complete.
  await expect(page.locator(".uploads")).toContainText(/Sending · (\d\d\d|[4-9]\d\.\d) MiB/, { timeout: 120_000 });
  expected.push(/./);
  await page.reload();
  await expect(page.locator(".uploads")).toContainText("Broken off");
  let sent = 0;
  page.on("request", (request) => {
    if (request.method() === "PUT" && request.url().includes("partNumber")) sent += 1;
  });
  await field.setInputFiles(path);
  await expect(page.locator(".uploads")).toContainText("were already there");
  await expect(page.locator(".uploads")).toContainText("1 of 1 uploaded", { timeout: 500_000 });
  expect(sent).toBeGreaterThan(0);
  expect(sent).toBeLessThan(SIZE / 8);
  expect(await sumOf("large.bin")).toBe(sum);
});

test("an upload goes on after the server was restarted", async ({ page }) => {
  test.setTimeout(300_000);
  const { path, sum } = make("restart.bin", 96);
  await open(page, server.base, "objects/films/");
  await page.getByLabel("Upload files").setInputFiles(path);
  await expect(page.locator(".uploads")).toContainText(/Sending · \d\d\.\d MiB/, { timeout: 60_000 });
  expected.push(/./);
  await server.stop("SIGKILL");
  await expect(page.getByText("The server does not answer.").first()).toBeVisible();
  await server.start();
  client = await server.connect();
  await expect(page.locator(".uploads")).toContainText("1 of 1 uploaded", { timeout: 120_000 });
  expect(await sumOf("restart.bin")).toBe(sum);
});

test("a continued upload does not replace an object of another client without a question", async ({ page }) => {
  test.setTimeout(180_000);
  const { path, sum } = make("contested.bin", 48);
  const list = page.locator(".uploads");
  // The object is there: the question is a refused request of the browser.
  expected.push(/412/, /404/);
  await open(page, server.base, "objects/films/");
  await page.getByLabel("Upload files").setInputFiles(path);
  await expect(list).toContainText(/Sending · \d+(\.\d+)? MiB/, { timeout: 60_000 });
  await page.getByRole("button", { name: "Stop the upload of contested.bin" }).click();
  await expect(list).toContainText("Stopped");
  await client.must("PUT", "/s3/films/contested.bin", "of another client");
  let parts = 0;
  page.on("request", (request) => {
    if (request.method() === "PUT" && request.url().includes("partNumber")) parts += 1;
  });
  await list.getByRole("button", { name: "Resume" }).click();
  await expect(list).toContainText("A name that exists");
  expect(parts).toBe(0);
  expect(await client.must("GET", "/s3/films/contested.bin")).toBe("of another client");
  await list.getByRole("button", { name: "Replace" }).click();
  await expect(list).toContainText("1 of 1 uploaded", { timeout: 60_000 });
  expect(await sumOf("contested.bin")).toBe(sum);
});

test("an object that arrives before an upload in parts is complete is kept until its replacement is chosen", async ({ page }) => {
  test.setTimeout(180_000);
  const { path, sum } = make("raced.bin", 24);
  const list = page.locator(".uploads");
  expected.push(/412/, /404/);
  let stored = false;
  await page.route(/raced\.bin\?uploadId=/, async (route) => {
    if (route.request().method() === "POST" && !stored) {
      stored = true;
      await client.must("PUT", "/s3/films/raced.bin", "of another client");
    }
    await route.continue();
  });
  await open(page, server.base, "objects/films/");
  await page.getByLabel("Upload files").setInputFiles(path);
  await expect(list).toContainText("A name that exists", { timeout: 60_000 });
  expect(await client.must("GET", "/s3/films/raced.bin")).toBe("of another client");
  let parts = 0;
  page.on("request", (request) => {
    if (request.method() === "PUT" && request.url().includes("partNumber")) parts += 1;
  });
  await list.getByRole("button", { name: "Replace" }).click();
  await expect(list).toContainText("1 of 1 uploaded", { timeout: 60_000 });
  expect(parts).toBe(0);
  expect(await sumOf("raced.bin")).toBe(sum);
});

test("a broken-off upload is discarded", async ({ page }) => {
  test.setTimeout(120_000);
  const { path } = make("dropped.bin", 64);
  expected.push(/404/);
  await open(page, server.base, "objects/films/");
  await page.getByLabel("Upload files").setInputFiles(path);
  await expect(page.locator(".uploads")).toContainText(/Sending · \d+(\.\d+)? MiB/, { timeout: 60_000 });
  await page.getByRole("button", { name: "Stop the upload of dropped.bin" }).click();
  await expect(page.locator(".uploads")).toContainText("Stopped");
  await page.getByRole("button", { name: "Clear finished" }).click();
  await page.getByRole("button", { name: "Discard" }).click();
  await expect(page.locator(".uploads")).toHaveCount(0);
  expect(await client.must("GET", "/s3/films?uploads")).not.toContain("dropped.bin");
});
