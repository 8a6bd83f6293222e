// However a process, a worker or a store ends, it ends without a crash, and the next one opens what is there.

import { spawn } from 'node:child_process';
import * as path from 'node:path';

import { DiskStore } from '#internal/store/disk-store.js';
import { costly } from '../runner/slow.js';
import { inFolder, options } from './store-world.js';

const child = path.join(__dirname, 'untidy-child.js');
/** Under a leak checker: what V8 does not free when a process is ended in the middle is not ours. */
const env = { ...process.env, ASAN_OPTIONS: `${process.env['ASAN_OPTIONS'] ?? ''}:detect_leaks=0` };

for (const [scenario, title, errors] of [
  ['left open', 'a process that leaves a store open ends', /^$/],
  ['exit', 'a process that exits in the middle of reads and writes ends', /^$/],
  ['exit while opening', 'a process that exits while a store is opened ends', /^$/],
  ['closing', 'a process that does not wait for a close ends after it', /^$/],
  ['workers', 'workers that are terminated in the middle of reads and writes end', /^$/],
  ['collected', 'a store that is collected gives its directory free, and warns once', /^[^\n]*KV_NOT_CLOSED[^\n]*A DiskStore was garbage-collected[^\n]*\n[^\n]*\n$/],
] as const) {
  costly('starts processes')(title, (t) => inFolder(async (directory) => {
    const ended = await new Promise((resolve) => {
      const started = spawn(process.execPath, ['--expose-gc', child, scenario, directory], { stdio: ['ignore', 'inherit', 'pipe'], env });
      let text = '';
      started.stderr.setEncoding('utf8').on('data', (part: string) => { text += part; });
      started.on('close', (code, signal) => resolve({ code, signal, text }));
    }) as { code: number | null; signal: string | null; text: string };
    t.like(ended, { code: 0, signal: null }, ended.text);
    t.regex(ended.text, errors);
    if (scenario === 'workers' || scenario === 'collected') return;
    const store = await DiskStore.open(options(directory));
    t.is((await store.verify()).corrupt.length, 0);
    await store.close();
  }));
}
