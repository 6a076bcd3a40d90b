import { type Client, Server } from "./server";
import { accessible, expect, expected, fits, open, test } from "./page";

const server = new Server();
let client: Client;
let stop: () => Promise<number>;

test.beforeAll(async () => {
  await server.start();
  client = await server.connect();
  await client.must("PUT", "/s3/photos");
  await client.must("PUT", "/s3/photos/2026/readme.txt", "Hello", { "content-type": "text/plain", "x-amz-meta-camera": "X100" });
  stop = client.load("photos");
});

test.afterAll(async () => {
  await stop();
  await server.end();
});

const PAGES: [string, RegExp][] = [
  ["overview", /Requests a second/],
  ["device", /Free runs by size/],
  ["puts", /Flush time of the log/],
  ["objects", /photos/],
  ["objects/photos/", /2026/],
  ["operations", /No damage found/],
  ["keys", /Who may do what|no file of keys/],
];

for (const [hash, words] of PAGES) {
  for (const [name, width, scheme] of [["desktop, light", 1280, "light"], ["desktop, dark", 1280, "dark"], ["phone", 360, "light"]] as const) {
    test(`${hash} on a ${name} screen has no error and no violation`, async ({ page }) => {
      await page.setViewportSize({ width, height: 800 });
      await page.emulateMedia({ colorScheme: scheme });
      await open(page, server.base, hash);
      await expect(page.locator("main")).toContainText(words);
      await fits(page);
      await accessible(page);
    });
  }
}

test("the policy for scripts is strict", async ({ page }) => {
  const answer = await page.goto(server.base);
  const policy = answer?.headers()["content-security-policy"] ?? "";
  expect(policy).toContain("default-src 'none'");
  expect(policy).not.toContain("unsafe");
  expected.push(/Content Security Policy/);
  await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "window.intruder = true";
    document.body.append(script);
  });
  expect(await page.evaluate(() => "intruder" in window)).toBe(false);
});

test("figures move under load", async ({ page }) => {
  await open(page, server.base, "overview");
  const objects = page.locator(".stat", { hasText: "Requests" }).locator(".value");
  await expect(objects).not.toHaveText("0/s");
  const seen = new Set<string>();
  for (let second = 0; second < 6; second += 1) {
    seen.add((await page.locator(".stats").innerText()).replace(/up .*/, ""));
    await page.waitForTimeout(1000);
  }
  expect(seen.size).toBeGreaterThanOrEqual(4);
});

test("the latency map and the time lines are drawn", async ({ page }) => {
  await open(page, server.base, "puts");
  await page.waitForTimeout(3000);
  const painted = await page.evaluate(() =>
    [...document.querySelectorAll("canvas")].map((canvas) => {
      const { data } = canvas.getContext("2d")!.getImageData(0, 0, canvas.width, canvas.height);
      const colours = new Set<number>();
      for (let at = 0; at < data.length; at += 4) if (data[at + 3]! > 0) colours.add((data[at]! << 16) | (data[at + 1]! << 8) | data[at + 2]!);
      return colours.size;
    }),
  );
  expect(painted.length).toBe(7);
  for (const colours of painted) expect(colours).toBeGreaterThan(1);
});

test("a cell of the device opens with its free runs, by mouse and by keys", async ({ page }) => {
  await open(page, server.base, "device");
  const map = page.locator(".map canvas");
  await map.click({ position: { x: 100, y: 40 } });
  await expect(page.getByRole("heading", { name: /^Cell/ })).toBeVisible();
  await page.getByRole("button", { name: "Close" }).click();
  await map.focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { name: /^Cell/ })).toBeVisible();
  await accessible(page);
});

test("pages, packed runs and extents are told apart on demand", async ({ page }) => {
  await client.must("PUT", "/s3/photos/film.bin", "x".repeat(300_000));
  await open(page, server.base, "device");
  const map = page.locator(".panel", { has: page.locator(".map canvas") });
  await map.getByText("Kind", { exact: true }).click();
  await expect(map).toContainText("only the trees know");
  await expect(map).not.toContainText("Extents");
  await map.getByRole("button", { name: "Read the trees" }).click();
  await expect(map).toContainText(/Pages, packed runs and extents as of .*\d\d:\d\d:\d\d/, { timeout: 20_000 });
  // Within seconds an apply has the object in the trees.
  await expect(async () => {
    await map.getByRole("button", { name: "Read again" }).click();
    await expect(map.locator(".legend")).toContainText("Extents", { timeout: 4000 });
  }).toPass({ timeout: 40_000 });
  await accessible(page);
  // The first cell has superblocks only.
  await page.locator(".map canvas").focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  const kinds = page.getByLabel("Runs of cell 0 by kind");
  await expect(kinds.getByRole("row", { name: /^Superblocks and space image/ })).toBeVisible();
  await expect(kinds.getByRole("row")).toHaveCount(2);
});

test("sizes of buckets are estimated all at once", async ({ page }) => {
  await open(page, server.base, "objects");
  const row = page.getByRole("row", { name: /photos/ });
  await page.getByRole("button", { name: /Estimate all sizes|Read again/ }).click();
  await expect(row).toContainText(/≈ .* · ≈ [\d,]+ objects/, { timeout: 20_000 });
  await expect(page.locator("main")).toContainText(/Sizes with ≈ are those of/);
  await row.getByRole("button", { name: "Count exactly" }).click();
  await expect(row).toContainText(/[\d,]+ objects/);
  await accessible(page);
});

test("every page is reached by the keyboard alone", async ({ page }) => {
  await open(page, server.base, "overview");
  await page.keyboard.press("Tab");
  await expect(page.locator(":focus")).toHaveText("Skip to the page");
  for (const name of ["Shoal", "Overview", "Device", "Puts"]) {
    await page.keyboard.press("Tab");
    await expect(page.locator(":focus")).toContainText(name);
  }
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("The way of a put");
});

test("the theme is chosen and kept", async ({ page }) => {
  await open(page, server.base, "overview");
  await page.getByRole("button", { name: "Theme: system" }).click();
  await page.getByRole("button", { name: "Theme: light" }).click();
  await page.reload();
  await expect(page.locator("html")).toHaveAttribute("data-theme", "dark");
});

test("a scrub starts at its button and the report is downloaded", async ({ page }) => {
  await open(page, server.base, "operations");
  await page.getByRole("button", { name: "Start scrub" }).click();
  await expect(page.locator(".panel", { hasText: "Passes since the start" })).toContainText(/Passes since the start\s*[1-9]/, { timeout: 30_000 });
  const report = page.waitForEvent("download");
  await page.getByRole("link", { name: "Download report" }).click();
  expect((await report).suggestedFilename()).toMatch(/\.tar\.gz$|\.tgz$/);
});

test("the archive has its place among the operations", async ({ page }) => {
  await open(page, server.base, "operations/archive");
  await expect(page.locator(".panel", { hasText: "This server archives nothing" })).toContainText("--archive URL");
});

test("the log is filtered", async ({ page }) => {
  await open(page, server.base, "operations/log");
  await expect(page.locator(".log")).toContainText("INFO");
  await page.getByLabel("Filter").fill("no line has this");
  await expect(page.locator("main")).toContainText("No line matches");
});
