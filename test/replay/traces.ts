// The public traces that lie beside the repository where it is developed; a test that needs one is skipped by name elsewhere.

import { existsSync } from 'node:fs';
import * as path from 'node:path';

import test, { type Implementation } from 'ava';

import { slow } from '../runner/slow.js';

export type TraceFile = 'azure-code.csv' | 'mooncake-synthetic.jsonl';

export function traceFile(name: TraceFile): string {
  return path.resolve(__dirname, '..', '..', '..', 'shared', 'traces', name);
}

/** A test over a public trace. */
export function testWithTrace(title: string, name: TraceFile, run: Implementation<[]>): void {
  if (existsSync(traceFile(name))) slow('replays a whole trace')(title, run);
  else test.skip(`${title} [needs ../shared/traces/${name}]`, run);
}
