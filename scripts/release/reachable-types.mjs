// Which declarations a user of the package can reach: those of its entries, and what they import. The others describe internals that no
// path of `exports` leads to; prepack.mjs leaves them out.

import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';

/** Declarations in `folder` that `entries`, files of it, do not need. */
export function unreachableTypes(folder, entries) {
  const reached = new Set();
  const left = entries.map((entry) => path.resolve(folder, entry));
  for (let file = left.pop(); file !== undefined; file = left.pop()) {
    if (reached.has(file)) continue;
    reached.add(file);
    for (const [, name] of readFileSync(file, 'utf8').matchAll(/(?:from|import)\s*\(?["'](\.{1,2}\/[^"']+)\.js["']/g)) {
      const wanted = path.resolve(path.dirname(file), `${name}.d.ts`);
      if (!existsSync(wanted)) throw new Error(`${file} needs ${wanted}, which is not there`);
      left.push(wanted);
    }
  }
  return readdirSync(folder, { recursive: true }).filter((name) => name.endsWith('.d.ts')).map((name) => path.resolve(folder, name)).filter((file) => !reached.has(file));
}
