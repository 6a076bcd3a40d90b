// The frame of all pages: navigation, the state of the server, theme and identity.
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { close, latest, open } from "../data/live";
import { Device } from "../pages/device/page";
import { Docs } from "../pages/docs/page";
import { Keys } from "../pages/keys/page";
import { Objects } from "../pages/objects/page";
import { Operations } from "../pages/operations/page";
import { Overview } from "../pages/overview/page";
import { Puts } from "../pages/puts/page";
import { T } from "../texts";
import { Toasts } from "../ui/toasts";
import { PAGES, type Page, route } from "./router";
import { returns, seesFigures, session, signOut, state, stopped } from "./session";
import { SignIn } from "./sign-in";
import { nextTheme, theme } from "./theme";

const VIEWS: Record<Page, () => ComponentChildren> = {
  overview: () => <Overview />,
  device: () => <Device />,
  puts: () => <Puts />,
  objects: () => <Objects />,
  operations: () => <Operations />,
  keys: () => <Keys />,
  docs: () => <Docs />,
};

export function Shell() {
  const inside = state.value === "in";
  useEffect(() => {
    if (inside) void open();
    else close();
  }, [inside, returns.value]);
  useEffect(() => {
    // A key without figures has its objects first.
    if (inside && !seesFigures() && !location.hash) location.hash = "#/objects";
  }, [inside]);
  const page = route.value.page;
  useEffect(() => {
    document.title = inside ? `${T.pages[page]} · Shoal` : "Shoal";
  }, [page, inside]);
  return (
    <>
      {stopped.value ? (
        <div class="banner" role="alert">
          {T.stopped}
        </div>
      ) : null}
      {state.value === "out" ? <SignIn /> : null}
      {inside ? (
        <div class="frame">
          <a class="skip" href="#main" onClick={skip}>
            {T.skip}
          </a>
          <Side page={page} />
          <main id="main" tabIndex={-1}>
            {VIEWS[page]()}
          </main>
        </div>
      ) : null}
      <Toasts />
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Side(props: { page: Page }) {
  const who = session.value;
  const sample = latest.value;
  const warnings = sample?.health.warnings ?? [];
  const severe = stopped.value || (sample && !sample.health.ready) || warnings.some((warning) => warning.severe);
  const mood = severe ? "bad" : warnings.length > 0 ? "warn" : "good";
  return (
    <header class="side">
      <a class="brand" href="#/overview">
        <img src="favicon.svg" alt="" width="22" height="22" />
        Shoal
      </a>
      <nav aria-label={T.navigation}>
        {PAGES.map((page) => (
          <a key={page} href={`#/${page}`} aria-current={page === props.page ? "page" : undefined}>
            {T.pages[page]}
            {page === "overview" ? <span class={`dot ${mood}`} title={T.moods[mood]} /> : null}
          </a>
        ))}
      </nav>
      <div class="who">
        <span class="identity" title={who?.identity}>
          {who?.identity}
        </span>
        <span class="who-buttons">
          <button type="button" onClick={nextTheme}>
            {T.themes[theme.value]}
          </button>
          {who?.asks ? (
            <button type="button" onClick={() => void signOut()}>
              {T.signOut}
            </button>
          ) : null}
        </span>
      </div>
    </header>
  );
}
