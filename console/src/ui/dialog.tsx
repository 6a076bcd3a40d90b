// A modal dialog. The browser keeps the focus inside, and gives it back.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { wordsOf } from "../data/http";
import { T } from "../texts";
import { Fault } from "./parts";

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={element}
      class={props.wide ? "wide" : ""}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
    >
      <header>
        <h2 id={id}>{props.title}</h2>
        <button type="button" class="quiet" aria-label={T.close} onClick={props.onClose}>
          ×
        </button>
      </header>
      {props.children}
    </dialog>
  );
}

// A form in a dialog: the action runs at its button, its error is shown, and without one the dialog closes.
export function ActionDialog(props: {
  title: string;
  button: string;
  danger?: boolean;
  disabled?: boolean;
  onClose: () => void;
  run: () => Promise<boolean | void>;
  children: ComponentChildren;
}) {
  const [words, setWords] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setWords("");
    try {
      if ((await props.run()) !== false) props.onClose();
    } catch (error) {
      setWords(wordsOf(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form onSubmit={(event) => void submit(event)}>
        {props.children}
        <Fault words={words} />
        <footer>
          <button type="button" onClick={props.onClose}>
            {T.cancel}
          </button>
          <button type="submit" class={props.danger ? "danger" : "primary"} disabled={busy || props.disabled}>
            {props.button}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

// A value that is copied with one button.
export function CopyField(props: { label: string; value: string }) {
  const [copied, setCopied] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(props.value);
      setCopied(true);
    } catch {
      field.current?.select();
    }
  };
  return (
    <div class="field">
      <span aria-hidden="true">{props.label}</span>
      <span class="copy">
        <input ref={field} readOnly aria-label={props.label} value={props.value} onFocus={(event) => event.currentTarget.select()} />
        <button type="button" onClick={() => void copy()} aria-label={`${T.copy} ${props.label}`}>
          {copied ? T.copied : T.copy}
        </button>
      </span>
    </div>
  );
}
