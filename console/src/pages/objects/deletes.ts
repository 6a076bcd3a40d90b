// Deletes wait for the time of their undo: until then nothing is sent, and a page that is closed deletes nothing.
import { signal } from "@preact/signals";
import { wordsOf } from "../../data/http";
import { below, remove } from "../../data/s3";
import { T } from "../../texts";
import { say } from "../../ui/toasts";

export const UNDO_MS = 8000;
const AT_ONCE = 6;

// Bucket and key of each object that waits for its delete.
export const doomed = signal<Set<string>>(new Set());
// Deletes that are through: trees take the keys out.
export const gone = signal<{ bucket: string; keys: Set<string> } | null>(null);

export function mark(bucket: string, key: string): string {
  return `${bucket}/${key}`;
}

function withdraw(marks: string[]): void {
  const left = new Set(doomed.value);
  for (const one of marks) left.delete(one);
  doomed.value = left;
}

// Deletes objects and everything below prefixes after the time of the undo.
export function deleteLater(bucket: string, keys: string[], prefixes: string[]): void {
  const marks = [...keys, ...prefixes].map((name) => mark(bucket, name));
  doomed.value = new Set([...doomed.value, ...marks]);
  const words = T.objects.deleting(keys.length, prefixes.length);
  const timer = setTimeout(() => void run(bucket, keys, prefixes).finally(() => withdraw(marks)), UNDO_MS);
  say(words, false, UNDO_MS, {
    label: T.objects.undo,
    run: () => {
      clearTimeout(timer);
      withdraw(marks);
      say(T.objects.undone);
    },
  });
}

async function run(bucket: string, keys: string[], prefixes: string[]): Promise<void> {
  const failed: string[] = [];
  let deleted = 0;
  const all = async (names: string[]) => {
    const queue = [...names];
    const worker = async () => {
      for (let key = queue.shift(); key !== undefined; key = queue.shift()) {
        try {
          await remove(bucket, key);
          deleted += 1;
        } catch (error) {
          failed.push(T.objects.deleteFailed(key, wordsOf(error)));
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
  };
  await all(keys);
  for (const prefix of prefixes) {
    try {
      for await (const page of below(bucket, prefix)) {
        await all(page.map((entry) => entry.key));
        if (failed.length > 0) break;
      }
    } catch (error) {
      failed.push(T.objects.deleteFailed(prefix, wordsOf(error)));
    }
  }
  if (failed.length > 0) say(failed[0] ?? "", true);
  else say(T.objects.deleted(deleted));
  if (failed.length === 0) gone.value = { bucket, keys: new Set([...keys, ...prefixes]) };
}
