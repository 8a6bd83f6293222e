// Another process with a cache over a disk, a Redis or both: `node lasting-child.js JSON`. It computes texts and closes, or serves them from its
// tiers, and prints what it found of each. `uid`: as which user it works.

import { diskTier, isKvError, priority, redisTier, type Tier } from 'virtual-kv';

import { patient } from '../../helpers/patient.js';
import { LastingCache, type LastingOptions } from './lasting-cache.js';

export interface ChildTask {
  readonly work: 'compute' | 'serve';
  readonly directory?: string;
  readonly url?: string;
  readonly texts: readonly number[];
  /** Priority level of each text that is computed; the device's policy is then `priority`. */
  readonly levels?: readonly number[];
  /** Of the disk. Default 64 MiB. */
  readonly bytes?: number;
  readonly options?: LastingOptions;
  readonly uid?: number;
}

export interface ChildReport {
  readonly found: readonly { readonly found: number; readonly wrong: number; readonly from: Readonly<Record<string, number>>; readonly end: string }[];
  readonly error?: { readonly code: string; readonly message: string };
}

async function main({ work, directory, bytes = 64 * 2 ** 20, url, texts, levels, options, uid }: ChildTask): Promise<ChildReport> {
  if (uid !== undefined) {
    process.setgid!(uid);
    process.setuid!(uid);
  }
  const tiers: Tier[] = [];
  if (directory !== undefined) tiers.push(diskTier({ directory, bytes, admit: 'all' }));
  if (url !== undefined) tiers.push(redisTier({ url, ...patient }));
  const cache = new LastingCache(tiers, levels === undefined ? options : { ...options, prefixCache: { policy: priority() } });
  try {
    await cache.ready();
  } catch (error) {
    if (!isKvError(error)) throw error;
    await cache.close();
    return { found: [], error: { code: error.code, message: error.message } };
  }
  const found = [];
  for (const [at, text] of texts.entries()) found.push(work === 'serve' ? await cache.serve(text) : { ...cache.compute(text, levels?.[at]), from: {}, end: '' });
  await cache.close();
  return { found };
}

void main(JSON.parse(process.argv[2]!) as ChildTask).then((report) => {
  process.stdout.write(JSON.stringify(report));
});
