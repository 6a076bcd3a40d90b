// Small parts that all pages use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { T } from "../texts";

export function Panel(props: { title: string; aside?: ComponentChildren; children: ComponentChildren; id?: string; wide?: boolean }) {
  const id = props.id ?? props.title.toLowerCase().replace(/[^a-z]+/g, "-");
  return (
    <section class={props.wide ? "panel wide" : "panel"} aria-labelledby={`panel-${id}`}>
      <header>
        <h2 id={`panel-${id}`}>{props.title}</h2>
        {props.aside ? <div class="aside">{props.aside}</div> : null}
      </header>
      {props.children}
    </section>
  );
}

export function Stat(props: { label: string; value: ComponentChildren; note?: ComponentChildren; tone?: "good" | "bad" | "warn" }) {
  return (
    <div class={props.tone ? `stat ${props.tone}` : "stat"}>
      <dt>{props.label}</dt>
      <dd>
        <span class="value">{props.value}</span>
        {props.note ? <span class="note">{props.note}</span> : null}
      </dd>
    </div>
  );
}

// A text whose names between backticks are code.
export function Said(props: { text: string }) {
  return (
    <span>
      {props.text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part))}
    </span>
  );
}

export interface Share {
  label: string;
  value: number;
  colour: string;
  text: string;
}

// A bar of shares. Widths are set by script: the page has no inline styles.
export function Bar(props: { label: string; total: number; shares: Share[]; legend?: boolean; slim?: boolean }) {
  const total = Math.max(props.total, 1e-9);
  const said = `${props.label}: ${props.shares.map((share) => `${share.label} ${share.text}`).join(", ")}`;
  return (
    <div class={props.slim ? "bar slim" : "bar"}>
      <div class="track" role="img" aria-label={said}>
        {props.shares.map((share) => (
          <Fill key={share.label} share={Math.max(0, share.value) / total} colour={share.colour} title={`${share.label}: ${share.text}`} />
        ))}
      </div>
      {props.legend ? <Legend items={props.shares} /> : null}
    </div>
  );
}

function Fill(props: { share: number; colour: string; title: string }) {
  const element = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (!element.current) return;
    element.current.style.width = `${Math.min(100, props.share * 100)}%`;
    element.current.style.backgroundColor = `var(${props.colour})`;
  }, [props.share, props.colour]);
  return <span ref={element} title={props.title} />;
}

export function Swatch(props: { colour: string }) {
  const element = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (element.current) element.current.style.backgroundColor = props.colour.startsWith("--") ? `var(${props.colour})` : props.colour;
  }, [props.colour]);
  return <span class="swatch" ref={element} aria-hidden="true" />;
}

export function Legend(props: { items: { label: string; colour: string; text?: string }[] }) {
  return (
    <ul class="legend">
      {props.items.map((item) => (
        <li key={item.label}>
          <Swatch colour={item.colour} />
          {item.label}
          {item.text ? <b>{item.text}</b> : null}
        </li>
      ))}
    </ul>
  );
}

export function Empty(props: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="title">{props.title}</p>
      {props.children ? <div>{typeof props.children === "string" ? <Said text={props.children} /> : props.children}</div> : null}
    </div>
  );
}

export function Fault(props: { words: string; retry?: () => void }) {
  if (!props.words) return null;
  return (
    <div class="fault" role="alert">
      <Said text={props.words} />
      {props.retry ? (
        <button type="button" onClick={props.retry}>
          {T.again}
        </button>
      ) : null}
    </div>
  );
}

export interface Choice<V extends string | number> {
  value: V;
  label: string;
}

// One of a few values, as buttons side by side.
export function Choices<V extends string | number>(props: { label: string; value: V; choices: Choice<V>[]; onChoice: (value: V) => void }) {
  return (
    <div class="choices" role="group" aria-label={props.label}>
      {props.choices.map((choice) => (
        <button
          key={choice.value}
          type="button"
          aria-pressed={choice.value === props.value}
          onClick={() => props.onChoice(choice.value)}
        >
          {choice.label}
        </button>
      ))}
    </div>
  );
}

export function Scroll(props: { label: string; children: ComponentChildren; class?: string }) {
  return (
    <div class={`scroll ${props.class ?? ""}`} role="group" aria-label={props.label} tabIndex={0}>
      {props.children}
    </div>
  );
}
