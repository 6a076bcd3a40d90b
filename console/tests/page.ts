// A page whose errors fail its test, and the check for accessibility.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { type Page, test as base, expect } from "@playwright/test";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

// Errors that a test brings about itself: an unanswered request is an error of the browser's console, too.
export const expected: RegExp[] = [];

export const test = base.extend({
  page: async ({ page }, use) => {
    const errors: string[] = [];
    expected.length = 0;
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") errors.push(`${message.text()} (${message.location().url})`);
    });
    page.on("pageerror", (error) => errors.push(String(error.stack ?? error)));
    await use(page);
    expect(errors.filter((error) => !expected.some((allowed) => allowed.test(error)))).toEqual([]);
  },
});

export { expect };

interface Violation {
  id: string;
  help: string;
  nodes: { html: string }[];
}

// axe-core comes in through the debugger: the page's own policy allows no foreign script.
export async function accessible(page: Page): Promise<void> {
  await page.evaluate(AXE);
  const found = await page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: { run: () => Promise<{ violations: Violation[] }> } };
    return (await axe.run()).violations;
  });
  expect(found.map((one) => `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" ")}`)).toEqual([]);
}

// No part of the page is wider than the window.
export async function fits(page: Page): Promise<void> {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  expect(over).toBeLessThanOrEqual(0);
}

export async function open(page: Page, base: string, hash: string): Promise<void> {
  await page.goto(`${base}/#/${hash}`);
  await expect(page.locator("main h1").first()).toBeAttached();
}
