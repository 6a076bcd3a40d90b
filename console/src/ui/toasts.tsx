// Short messages at the edge of the page, read out by screen readers.
import { signal } from "@preact/signals";
import { T } from "../texts";
import { Said } from "./parts";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
  action?: { label: string; run: () => void };
}

const toasts = signal<Toast[]>([]);
let next = 1;

export function dismiss(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

export function say(text: string, bad = false, ms = bad ? 12000 : 5000, action?: Toast["action"]): number {
  const id = next;
  next += 1;
  const toast: Toast = { id, text, bad };
  if (action) toast.action = action;
  toasts.value = [...toasts.value.slice(-4), toast];
  setTimeout(() => dismiss(id), ms);
  return id;
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite" aria-label={T.messages}>
      {toasts.value.map((toast) => (
        <div key={toast.id} class={toast.bad ? "toast bad" : "toast"}>
          <Said text={toast.text} />
          {toast.action ? (
            <button
              type="button"
              onClick={() => {
                toast.action?.run();
                dismiss(toast.id);
              }}
            >
              {toast.action.label}
            </button>
          ) : null}
          <button type="button" class="quiet" aria-label={T.dismiss} onClick={() => dismiss(toast.id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
