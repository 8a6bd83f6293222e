// What comes with the package to try it: a small model and two traces, by name, so that a printed command works wherever the package
// is installed.

import { existsSync } from 'node:fs';
import * as path from 'node:path';

import { packageFolder } from '../base/package.js';
import { modelError } from '../llama/model-error.js';

const shipped: ReadonlyMap<string, string> = new Map([
  ['storyteller', path.join('examples', 'llama', 'storyteller')],
  ['conversations', path.join('examples', 'traces', 'conversations.jsonl')],
  ['requests', path.join('examples', 'traces', 'requests.csv')],
]);

/** Returns `given`, or, where nothing of that name is here, the path of what the package ships under it. */
export function shippedPath(given: string): string {
  const place = shipped.get(given);
  return place === undefined || existsSync(given) ? given : path.join(packageFolder, place);
}

/** As `shippedPath`. Throws KV_MODEL_INVALID where nothing is there. */
export function modelPath(given: string): string {
  const place = shippedPath(given);
  if (existsSync(place)) return place;
  throw modelError(`${given} is not there. Give the folder or file of a model; \`--model storyteller\` is a small one that comes with this package.`);
}
