// Pictures of every page under load, for the documentation.
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { type Page, expect, test } from "@playwright/test";
import { SHOAL, Server } from "../tests/server";

const server = new Server(["--slow", "4ms", "--access-log"]);
const OUT = join(import.meta.dirname, "../../docs/console");
const CHARTS = join(import.meta.dirname, "../../docs/charts");
const MOST = 150_000;

async function shoot(page: Page, name: string): Promise<void> {
  const path = join(OUT, `${name}.png`);
  await page.screenshot({ path });
  const size = statSync(path).size;
  console.log(`${name}.png ${size} bytes`);
  expect(size).toBeLessThanOrEqual(MOST);
}

test("pictures of every page under load", async ({ page, browser }) => {
  test.setTimeout(600_000);
  mkdirSync(OUT, { recursive: true });
  await server.start();
  const client = await server.connect();
  await client.must("PUT", "/s3/photos");
  for (const file of readdirSync(CHARTS)) {
    await client.must("PUT", `/s3/photos/charts/${file}`, readFileSync(join(CHARTS, file)), { "content-type": "image/svg+xml", "x-amz-meta-source": "docs" });
  }
  await client.must("PUT", "/s3/photos/notes.txt", "The herring of March are small.\n", { "content-type": "text/plain" });
  for (const day of ["01", "02", "03"]) await client.must("PUT", `/s3/photos/2026-11-${day}/cat.txt`, day, { "content-type": "text/plain" });
  const backup = await client.ask("GET", "/api/backup");
  await backup.arrayBuffer();
  const stop = client.load("photos");
  for (const [name, grants] of [["backups", ["read,list *"]], ["uploads of the web", ["read,list,write photos/incoming*", "list photos"]]] as const) {
    await client.must("POST", "/api/keys", JSON.stringify({ name, grants, expires_ms: Date.now() + 90 * 86_400_000 }), { "content-type": "application/json" });
  }
  // Large objects, and holes between them.
  const large = new Uint8Array(3_000_000).fill(7);
  for (let n = 0; n < 90; n += 1) await client.must("PUT", `/s3/photos/raw/${n}.dng`, large);
  for (let n = 0; n < 90; n += 4) await client.must("DELETE", `/s3/photos/raw/${n}.dng`);
  const bench = (kind: string) => ["bench", "redis", "--server", `127.0.0.1:${server.redisPort}`, "--seconds", "300", "--case", kind];
  const loads = ["set-100b-c50", "get-100b-c50"].map((kind) => spawn(SHOAL, bench(kind), { stdio: "ignore" }));
  try {
    await page.setViewportSize({ width: 1200, height: 740 });
    await page.goto(`${server.base}/#/device`);
    await page.waitForTimeout(112_000);
    await shoot(page, "device");
    for (const name of ["overview", "puts", "operations", "keys"]) {
      await page.goto(`${server.base}/#/${name}`);
      await page.waitForTimeout(2500);
      await shoot(page, name);
    }
    await page.goto(`${server.base}/#/puts`);
    await page.locator("#panel-slow-requests").scrollIntoViewIfNeeded();
    await page.mouse.wheel(0, 2000);
    await page.waitForTimeout(1500);
    await shoot(page, "slow-requests");
    await page.goto(`${server.base}/#/objects/photos/charts/`);
    await page.getByRole("button", { name: "growth.svg", exact: true }).click();
    await page.waitForTimeout(1500);
    await shoot(page, "objects");
    const phone = await browser.newPage({ viewport: { width: 360, height: 780 }, colorScheme: "dark" });
    await phone.goto(`${server.base}/#/overview`);
    await phone.waitForTimeout(2500);
    await shoot(phone, "phone");
    const dark = await browser.newPage({ viewport: { width: 1200, height: 740 }, colorScheme: "dark" });
    await dark.goto(`${server.base}/#/overview`);
    await dark.waitForTimeout(2500);
    await shoot(dark, "overview-dark");
  } finally {
    for (const load of loads) load.kill("SIGKILL");
    await stop();
    await server.end();
  }
});
