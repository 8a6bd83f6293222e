// The file of results that gpu-check's programs write one after another, each its part, so that what one has found is there whatever
// becomes of the next.

import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';

export function readResults(file) {
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {};
}

/** Adds parts to the file, in place of those of the same names; does nothing where no file is named. */
export function addResults(file, parts) {
  if (file === undefined) return;
  writeFileSync(`${file}.part`, `${JSON.stringify({ ...readResults(file), ...parts }, undefined, 2)}\n`);
  renameSync(`${file}.part`, file);
}
