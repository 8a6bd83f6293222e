// What mapped.test.ts runs in processes of their own: `node --expose-gc mapped-child.js <scenario> <folder> <placement>`. A model whose file is cut,
// written to or replaced between two passes; prints, as JSON, what each pass came to and what memory the process has of its own.

import { closeSync, copyFileSync, openSync, readFileSync, renameSync, truncateSync, writeSync } from 'node:fs';
import * as path from 'node:path';

import { KvCache } from 'virtual-kv';
import { LlamaEngine, LlamaModel } from 'virtual-kv/llama';

const [scenario, folder, placement] = process.argv.slice(2) as [string, string, 'mapped' | 'copied'];
const file = path.join(folder, 'model.safetensors');

const changes: Readonly<Record<string, () => void>> = {
  nothing: () => {},
  cut: () => { truncateSync(file, 4096); },
  write: () => {
    const handle = openSync(file, 'r+');
    writeSync(handle, Buffer.from([1]), 0, 1, 100_000);
    closeSync(handle);
  },
  replace: () => {
    copyFileSync(path.join(folder, 'config.json'), `${file}.new`);
    renameSync(`${file}.new`, file);
  },
  signal: () => { process.kill(process.pid, 'SIGBUS'); },
};

/** Bytes of this process that no file holds, without what V8 has yet to collect. */
function ownBytes(): number {
  globalThis.gc!();
  const lines = readFileSync('/proc/self/smaps_rollup', 'utf8').split('\n');
  return 1024 * Number(/\d+/.exec(lines.find((line) => line.startsWith('Anonymous:'))!)![0]);
}

async function main(): Promise<void> {
  const before = ownBytes();
  const model = new LlamaModel(folder, { weights: placement, threads: 2 });
  using cache = new KvCache({ model: model.shape(), slots: 2, maxTokens: 64, memoryBudgetBytes: 2 ** 24, driver: 'host', mapper: 'off', pageBytes: 65_536, prefixCache: 'off' });
  using awaited = new LlamaEngine({ model, cache });
  using blocking = new LlamaEngine({ model, cache, passes: 'blocking' });
  const answers: (string | number)[] = [];
  const run = async (engine: LlamaEngine): Promise<void> => {
    using sequence = cache.acquire();
    const batch = cache.createBatch();
    batch.add(sequence, 4);
    cache.prepare(batch);
    try {
      const { logits } = await engine.prefill({
        length: 1, slots: Int32Array.of(sequence.slot), positions: Int32Array.of(0), tokenCounts: Int32Array.of(4), tokens: Int32Array.of(1, 2, 3, 4),
        wantsLogits: Uint8Array.of(1),
      });
      answers.push(logits[7]!);
    } catch (error) {
      answers.push((error as { code?: string }).code ?? String(error));
    } finally {
      cache.discard(batch);
    }
  };
  await run(awaited);
  const grown = ownBytes() - before;
  changes[scenario]!();
  await run(awaited);
  await run(blocking);
  console.log(JSON.stringify({ answers, grown }));
}

void main();
