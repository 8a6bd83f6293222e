// A folder of files for one test, removed when the test's work is over, also when it throws.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import type { ExecutionContext } from 'ava';

/** Calls `work` with a folder that has these files, by path within it. */
export function withTemporaryFolder(files: Readonly<Record<string, string>>, work: (folder: string) => void): void {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-'));
  try {
    for (const [file, text] of Object.entries(files)) {
      mkdirSync(path.dirname(path.join(folder, file)), { recursive: true });
      writeFileSync(path.join(folder, file), text);
    }
    work(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** A folder for the rest of a test. */
export function folderOf(t: ExecutionContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-'));
  t.teardown(() => { rmSync(folder, { recursive: true, force: true }); });
  return folder;
}
