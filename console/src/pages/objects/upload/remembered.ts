// Uploads in parts that are not complete, remembered by this browser so that the same file continues them.

export interface Remembered {
  bucket: string;
  key: string;
  upload: string;
  size: number;
  modified: number;
  part: number;
}

const PREFIX = "shoal.upload:";

function name(bucket: string, key: string): string {
  return `${PREFIX}${bucket}/${key}`;
}

export function remember(value: Remembered): void {
  localStorage.setItem(name(value.bucket, value.key), JSON.stringify(value));
}

export function forget(bucket: string, key: string): void {
  localStorage.removeItem(name(bucket, key));
}

function read(item: string): Remembered | null {
  try {
    return JSON.parse(localStorage.getItem(item) ?? "null") as Remembered | null;
  } catch {
    return null;
  }
}

// The broken-off upload of the same file: equal in size and time of change.
export function recall(bucket: string, key: string, file: File): Remembered | null {
  const value = read(name(bucket, key));
  return value && value.size === file.size && value.modified === file.lastModified ? value : null;
}

export function remembered(bucket: string): Remembered[] {
  const found: Remembered[] = [];
  for (let index = 0; index < localStorage.length; index += 1) {
    const item = localStorage.key(index) ?? "";
    const value = item.startsWith(PREFIX) ? read(item) : null;
    if (value && value.bucket === bucket) found.push(value);
  }
  return found;
}
