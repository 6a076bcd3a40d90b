import { readFileSync, writeFileSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { type Client, Server } from "./server";
import { accessible, expect, expected, open, test } from "./page";

const server = new Server();
let client: Client;
const PIXEL = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");

test.beforeAll(async () => {
  await server.start();
  client = await server.connect();
  await client.must("PUT", "/s3/photos");
});

test.afterAll(() => server.end());

test("a bucket is created, counted and deleted", async ({ page }) => {
  await open(page, server.base, "objects");
  await page.getByRole("button", { name: "Create bucket" }).click();
  await accessible(page);
  await page.getByLabel("Name", { exact: true }).fill("films");
  await page.getByRole("button", { name: "Create", exact: true }).click();
  const row = page.getByRole("row", { name: /films/ });
  await row.getByRole("button", { name: "Count" }).click();
  await expect(row).toContainText("0 objects");
  await row.getByRole("button", { name: "Delete bucket films" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete bucket" }).click();
  await expect(page.getByRole("row", { name: /films/ })).toHaveCount(0);
  expect((await client.ask("HEAD", "/s3/films")).status).toBe(404);
});

test("a bucket with objects is not deleted, and the page says what to do", async ({ page }) => {
  expected.push(/409/);
  await client.must("PUT", "/s3/full");
  await client.must("PUT", "/s3/full/one", "1");
  await open(page, server.base, "objects");
  await page.getByRole("button", { name: "Delete bucket full" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete bucket" }).click();
  await expect(page.getByRole("dialog").getByRole("alert")).toContainText("Delete its objects");
});

test("files and a folder are uploaded, shown and downloaded", async ({ page }) => {
  const folder = join(server.folder, "up");
  mkdirSync(join(folder, "in"), { recursive: true });
  writeFileSync(join(folder, "in", "one.txt"), "one");
  writeFileSync(join(folder, "in", "two.json"), '{"a":[1,2]}');
  await open(page, server.base, "objects/photos/");
  await page.getByLabel("Upload files").setInputFiles([
    { name: "hello world.txt", mimeType: "text/plain", buffer: Buffer.from("Hello, sea") },
    { name: "pixel.png", mimeType: "image/png", buffer: PIXEL },
  ]);
  await page.getByLabel("Upload folder").setInputFiles(folder);
  await expect(page.locator(".uploads")).toContainText("4 of 4 uploaded");
  await page.getByRole("button", { name: "hello world.txt", exact: true }).click();
  const details = page.getByRole("complementary");
  await expect(details.locator("pre")).toHaveText("Hello, sea");
  await accessible(page);
  const saved = page.waitForEvent("download");
  await details.getByRole("link", { name: "Download" }).click();
  const download = await saved;
  expect(download.suggestedFilename()).toBe("hello world.txt");
  expect(readFileSync(await download.path(), "utf8")).toBe("Hello, sea");

  await page.getByRole("button", { name: "pixel.png", exact: true }).click();
  await expect.poll(() => page.locator(".preview img").evaluate((image: HTMLImageElement) => image.naturalWidth)).toBe(1);

  await page.getByRole("button", { name: "Show what is in up/" }).click();
  await page.getByRole("button", { name: "Show what is in in/" }).click();
  await page.getByRole("button", { name: "two.json" }).click();
  await expect(details.locator("pre")).toContainText('"a": [');
});

test("files are dropped on the page", async ({ page }) => {
  await open(page, server.base, "objects/photos/dropped/");
  const transfer = await page.evaluateHandle(() => {
    const value = new DataTransfer();
    value.items.add(new File(["dropped"], "dropped.txt", { type: "text/plain" }));
    return value;
  });
  await page.locator(".drop").dispatchEvent("drop", { dataTransfer: transfer });
  await expect(page.getByRole("button", { name: "dropped.txt", exact: true })).toBeVisible();
  expect(await client.must("GET", "/s3/photos/dropped/dropped.txt")).toBe("dropped");
});

test("an upload does not replace an object unasked", async ({ page }) => {
  expected.push(/412/);
  await client.must("PUT", "/s3/photos/kept/a.txt", "old");
  await open(page, server.base, "objects/photos/kept/");
  await page.getByLabel("Upload files").setInputFiles({ name: "a.txt", mimeType: "text/plain", buffer: Buffer.from("new") });
  await expect(page.locator(".uploads")).toContainText("A name that exists");
  expect(await client.must("GET", "/s3/photos/kept/a.txt")).toBe("old");
  await page.locator(".uploads").getByRole("button", { name: "Replace" }).click();
  await expect(page.locator(".uploads")).toContainText("1 of 1 uploaded");
  expect(await client.must("GET", "/s3/photos/kept/a.txt")).toBe("new");
});

test("audio and video are read in ranges, text only at its start", async ({ page }) => {
  await client.must("PUT", "/s3/photos/media/long.txt", "line\n".repeat(100_000), { "content-type": "text/plain" });
  await client.must("PUT", "/s3/photos/media/tone.wav", new Uint8Array(wav()), { "content-type": "audio/wav" });
  const ranges: string[] = [];
  page.on("request", (request) => {
    if (request.url().includes("/media/") && request.headers()["range"]) ranges.push(`${request.url().split("/").at(-1)} ${request.headers()["range"]}`);
  });
  await open(page, server.base, "objects/photos/media/");
  await page.getByRole("button", { name: "long.txt", exact: true }).click();
  await expect(page.locator(".preview")).toContainText("The first 64.0 KiB");
  await page.getByRole("button", { name: "tone.wav", exact: true }).click();
  await expect.poll(() => page.locator("audio").evaluate((audio: HTMLAudioElement) => audio.duration)).toBeGreaterThan(0.9);
  expect(ranges.some((range) => range.startsWith("long.txt bytes=0-65535"))).toBe(true);
  expect(ranges.some((range) => range.startsWith("tone.wav bytes="))).toBe(true);
});

function wav(): Buffer {
  const data = Buffer.alloc(8000, 128);
  const head = Buffer.alloc(44);
  head.write("RIFF", 0);
  head.writeUInt32LE(36 + data.length, 4);
  head.write("WAVEfmt ", 8);
  head.writeUInt32LE(16, 16);
  head.writeUInt16LE(1, 20);
  head.writeUInt16LE(1, 22);
  head.writeUInt32LE(8000, 24);
  head.writeUInt32LE(8000, 28);
  head.writeUInt16LE(1, 32);
  head.writeUInt16LE(8, 34);
  head.write("data", 36);
  head.writeUInt32LE(data.length, 40);
  return Buffer.concat([head, data]);
}

test("an object is copied and tagged, and its metadata shown", async ({ page }) => {
  // The copy looks whether its name is taken.
  expected.push(/404/);
  await client.must("PUT", "/s3/photos/one/a.txt", "a", { "content-type": "text/plain", "x-amz-meta-camera": "X100" });
  await open(page, server.base, "objects/photos/one/");
  await page.getByRole("button", { name: "a.txt", exact: true }).click();
  const details = page.getByRole("complementary");
  await expect(details).toContainText("X100");
  await details.getByLabel("Name").fill("kind");
  await details.getByLabel("Value").fill("test & <more>");
  await details.getByRole("button", { name: "Add" }).click();
  await expect(details).toContainText("kind=test & <more>");
  expect(await client.must("GET", "/s3/photos/one/a.txt?tagging")).toContain("test &amp; &lt;more&gt;");
  await details.getByRole("button", { name: "Copy", exact: true }).click();
  await page.getByLabel("To key").fill("one/b.txt");
  await page.getByRole("dialog").getByRole("button", { name: "Copy", exact: true }).click();
  await expect(page.getByRole("button", { name: "b.txt", exact: true })).toBeVisible();
  expect(await client.must("GET", "/s3/photos/one/b.txt")).toBe("a");
});

test("a link is made, works without a session, and names its end", async ({ page }) => {
  await client.must("PUT", "/s3/photos/link/a.txt", "linked");
  await open(page, server.base, "objects/photos/link/");
  await page.getByRole("button", { name: "a.txt", exact: true }).click();
  await page.getByRole("button", { name: "Link", exact: true }).click();
  await page.getByLabel("Valid for").selectOption("600");
  await page.getByRole("button", { name: "Make link" }).click();
  await expect(page.getByRole("dialog")).toContainText("Valid until");
  await accessible(page);
  const url = await page.getByRole("dialog").getByRole("textbox").inputValue();
  expect(await (await fetch(url)).text()).toBe("linked");
});

test("a delete can be undone, and happens without the undo", async ({ page }) => {
  await client.must("PUT", "/s3/photos/gone/a.txt", "a");
  await client.must("PUT", "/s3/photos/gone/b.txt", "b");
  await open(page, server.base, "objects/photos/gone/");
  await page.getByLabel("Choose a.txt").check();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await accessible(page);
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("button", { name: "Undo" }).click();
  await page.getByRole("button", { name: "b.txt", exact: true }).click();
  await page.getByRole("complementary").getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByRole("button", { name: "b.txt", exact: true })).toHaveCount(0, { timeout: 20_000 });
  expect((await client.ask("HEAD", "/s3/photos/gone/b.txt")).status).toBe(404);
  expect(await client.must("GET", "/s3/photos/gone/a.txt")).toBe("a");
});

test("a folder is counted before its delete", async ({ page }) => {
  for (let n = 0; n < 30; n += 1) await client.must("PUT", `/s3/photos/bulk/in/${n}`, "x");
  await client.must("PUT", "/s3/photos/bulk/inner", "stays");
  await open(page, server.base, "objects/photos/bulk/");
  await page.getByLabel("Choose in/").check();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByRole("dialog")).toContainText("30 objects");
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.locator(".toasts")).toContainText("30 objects deleted", { timeout: 20_000 });
  expect(await client.must("GET", "/s3/photos?list-type=2&prefix=bulk/")).not.toContain("bulk/in/");
  expect(await client.must("GET", "/s3/photos/bulk/inner")).toBe("stays");
});

test("a prefix is downloaded as tar and as zip", async ({ page }) => {
  await client.must("PUT", "/s3/photos/pack/a.txt", "in the archive");
  await open(page, server.base, "objects/photos/pack/");
  for (const format of ["tar", "zip"]) {
    await page.getByRole("button", { name: "Download all" }).click();
    const saved = page.waitForEvent("download");
    await page.getByRole("dialog").getByRole("link", { name: format }).click();
    const bytes = readFileSync(await (await saved).path());
    expect(bytes.includes("in the archive")).toBe(true);
    await expect(page.getByRole("dialog")).toHaveCount(0);
  }
});

test("names are found by their start", async ({ page }) => {
  for (const name of ["apple", "apricot", "banana"]) await client.must("PUT", `/s3/photos/find/${name}`, name);
  await open(page, server.base, "objects/photos/find/");
  await page.getByLabel("Names that start with").fill("ap");
  await expect(page.getByRole("status").filter({ hasText: "names" })).toContainText("2 names");
  await page.getByLabel("Names that start with").fill("zz");
  await expect(page.locator("main")).toContainText("No name starts with");
});
