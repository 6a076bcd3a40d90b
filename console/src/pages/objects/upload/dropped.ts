// Files of a drop or a file field, with their names below the folder that was dropped.

export interface Named {
  name: string;
  file: File;
}

export function chosen(list: FileList): Named[] {
  return [...list].map((file) => ({ name: file.webkitRelativePath || file.name, file }));
}

export async function dropped(transfer: DataTransfer): Promise<Named[]> {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry());
  const found: Named[] = [];
  for (const entry of entries) {
    if (entry) await walk(entry, "", found);
  }
  return found.length ? found : chosen(transfer.files);
}

async function walk(entry: FileSystemEntry, folder: string, found: Named[]): Promise<void> {
  if (entry.isFile) {
    const file = await new Promise<File>((done, fail) => (entry as FileSystemFileEntry).file(done, fail));
    found.push({ name: folder + entry.name, file });
    return;
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  for (;;) {
    // A reader gives some hundred entries at a time, and none at the end.
    const batch = await new Promise<FileSystemEntry[]>((done, fail) => reader.readEntries(done, fail));
    if (batch.length === 0) return;
    for (const inner of batch) await walk(inner, `${folder}${entry.name}/`, found);
  }
}
