// Light, dark, or as the system has it. The choice stays in this browser.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const NAME = "shoal.theme";

function kept(): Theme {
  const value = localStorage.getItem(NAME);
  return value === "light" || value === "dark" ? value : "system";
}

export const theme = signal<Theme>(kept());
// Changes whenever colours change: drawings on a canvas are made again.
export const palette = signal(0);

effect(() => {
  const value = theme.value;
  if (value === "system") {
    document.documentElement.removeAttribute("data-theme");
    localStorage.removeItem(NAME);
  } else {
    document.documentElement.setAttribute("data-theme", value);
    localStorage.setItem(NAME, value);
  }
  palette.value = palette.peek() + 1;
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  palette.value += 1;
});

export function nextTheme(): void {
  const order: Theme[] = ["system", "light", "dark"];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length] ?? "system";
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
