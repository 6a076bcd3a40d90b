import { type Page } from "@playwright/test";
import { type Secret, Server } from "./server";
import { accessible, expect, expected, fits, test } from "./page";

const server = new Server(["--key-file", "shoal.keys"]);
let admin: Secret;
let reader: Secret;

test.beforeAll(async () => {
  admin = server.key("admin", "all *");
  reader = server.key("reader", "read,list photos/*");
  await server.start();
  const client = await server.connect(admin);
  await client.must("PUT", "/s3/photos");
  await client.must("PUT", "/s3/photos/a.txt", "readable", { "content-type": "text/plain" });
});

test.afterAll(() => server.end());

async function signIn(page: Page, key: Secret): Promise<void> {
  await page.getByLabel("Key ID").fill(key.id);
  await page.getByLabel("Secret, or token").fill(key.secret);
  await page.getByRole("button", { name: "Sign in" }).click();
}

test("the sign-in form is accessible on a phone, and wrong credentials are refused with words", async ({ page }) => {
  expected.push(/401/);
  await page.setViewportSize({ width: 360, height: 800 });
  await page.goto(server.base);
  await expect(page.getByRole("heading", { name: "Sign in to Shoal" })).toBeVisible();
  await fits(page);
  await accessible(page);
  await signIn(page, { id: admin.id, secret: "wrong-secret-wrong-secret-wrong-secret" });
  await expect(page.getByRole("alert")).toContainText("shoal key list");
  await accessible(page);
  await signIn(page, admin);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  await expect(page.locator(".identity")).toContainText(admin.id);
});

test("the cookie is out of reach of scripts, and signing out ends the session", async ({ page, context }) => {
  expected.push(/401/);
  await page.goto(server.base);
  await signIn(page, admin);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Overview");
  const [cookie] = await context.cookies();
  expect([cookie?.httpOnly, cookie?.sameSite]).toEqual([true, "Strict"]);
  expect(await page.evaluate(() => document.cookie)).toBe("");
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page.getByRole("heading", { name: "Sign in to Shoal" })).toBeVisible();
  const answer = await fetch(`${server.base}/api/session`, { headers: { cookie: `${cookie?.name}=${cookie?.value}` } });
  expect(answer.status).toBe(401);
});

test("a session that is over leads to the sign-in form, and signing in to the same page", async ({ page, context }) => {
  expected.push(/401/);
  await page.goto(`${server.base}/#/objects/photos/`);
  await signIn(page, admin);
  await expect(page.getByRole("button", { name: "a.txt", exact: true })).toBeVisible();
  await context.clearCookies();
  await page.getByRole("button", { name: "a.txt", exact: true }).click();
  await expect(page.getByRole("status").filter({ hasText: "session is over" })).toBeVisible();
  await signIn(page, admin);
  await expect(page.getByRole("button", { name: "a.txt", exact: true })).toBeVisible();
});

test("a server that is restarted under the page is shown as stopped, and the page returns by itself", async ({ page }) => {
  expected.push(/./);
  await page.goto(server.base);
  await signIn(page, admin);
  await expect(page.locator(".stats")).toBeVisible();
  await server.stop();
  await expect(page.locator(".banner")).toContainText("does not answer");
  await accessible(page);
  await server.start();
  await expect(page.locator(".banner")).toHaveCount(0);
  await signIn(page, admin);
  await expect(page.locator(".stats")).toBeVisible();
});

test("a key that may only read sees its bucket, and what it may not is said in words", async ({ page }) => {
  expected.push(/403/, /401/);
  await page.goto(server.base);
  await signIn(page, reader);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Objects");
  await page.getByLabel("Open a bucket by name").fill("photos");
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByRole("button", { name: "a.txt", exact: true }).click();
  await expect(page.locator(".preview pre")).toHaveText("readable");
  await accessible(page);
  await page.getByLabel("Upload files").setInputFiles({ name: "b.txt", mimeType: "text/plain", buffer: Buffer.from("no") });
  await expect(page.locator(".uploads")).toContainText("grant");
  await page.getByRole("link", { name: "Overview" }).click();
  await expect(page.locator("main")).toContainText("This key sees no figures");
  await page.getByRole("link", { name: "Keys" }).click();
  await expect(page.locator("main")).toContainText("admin *");
});

test("a key is created with grants, works, gets a new secret, and is revoked with its session", async ({ page, browser }) => {
  expected.push(/401/);
  await page.goto(`${server.base}/#/keys`);
  await signIn(page, admin);
  await page.getByRole("button", { name: "Create key" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("guest");
  await dialog.getByRole("textbox", { name: /^Bucket/ }).fill("photos");
  await dialog.getByLabel("Keys that start with").fill("a");
  await expect(dialog.locator(".explained li")).toContainText("photos");
  await accessible(page);
  await dialog.getByRole("button", { name: "Create", exact: true }).click();
  await expect(page.getByRole("dialog")).toContainText("shown this once");
  await accessible(page);
  const guest = {
    id: await page.getByRole("dialog").getByLabel("Key ID", { exact: true }).inputValue(),
    secret: await page.getByRole("dialog").getByLabel("Secret", { exact: true }).inputValue(),
  };
  await page.getByRole("button", { name: "I have copied it" }).click();
  expect(await page.content()).not.toContain(guest.secret);

  const context = await browser.newContext();
  const other = await context.newPage();
  await other.goto(`${server.base}/#/objects/photos/`);
  await signIn(other, guest);
  await other.getByLabel("Names that start with").fill("a");
  await expect(other.getByRole("button", { name: "a.txt", exact: true })).toBeVisible();

  const row = page.getByRole("row", { name: /guest/ });
  await row.getByRole("button", { name: /New secret/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "New secret" }).click();
  await expect(page.getByRole("dialog")).toContainText("shown this once");
  await page.getByRole("button", { name: "I have copied it" }).click();

  await row.getByRole("button", { name: /Revoke/ }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await expect(page.getByRole("row", { name: /guest/ })).toHaveCount(0);
  await other.getByRole("button", { name: "a.txt", exact: true }).click();
  await expect(other.getByRole("heading", { name: "Sign in to Shoal" })).toBeVisible();
  await context.close();
});
