import { defineConfig } from "@playwright/test";

// Each file of tests starts a server, so they run one after the other. Chromium is the packaged one.
export default defineConfig({
  testDir: process.env["SCREENSHOTS"] ? "pictures" : "tests",
  outputDir: "test-results",
  workers: 1,
  fullyParallel: false,
  timeout: 60_000,
  expect: { timeout: 10_000 },
  forbidOnly: true,
  reporter: [["list"]],
  use: {
    browserName: "chromium",
    viewport: { width: 1280, height: 900 },
    acceptDownloads: true,
    screenshot: "only-on-failure",
    launchOptions: {
      executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium",
      args: ["--no-sandbox", "--disable-dev-shm-usage"],
    },
  },
});
