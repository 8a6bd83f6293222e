// Parses `--tiers host=64GiB,disk=/var/cache/kv:1TB,redis=redis://127.0.0.1:6379` to tiers, the fastest first.

import { InvalidArgumentError } from 'commander';

import { isKvError } from '../base/errors.js';
import { diskTier, hostTier, redisTier, type Tier } from '../index.js';
import { sizeFlag } from './flag-values.js';

/** What `--tiers` may have, for help texts. */
export const tiersHelp = 'below the device: host=SIZE, disk=DIRECTORY:SIZE, redis=URL, separated by commas, the fastest first';

/** Tiers that take all text at once: what a run computes once is the point. */
export function tiersFlag(text: string): readonly Tier[] {
  return text.split(',').map((part) => {
    const [, kind, value] = /^(\w+)=(.+)$/.exec(part.trim()) ?? [];
    try {
      if (kind === 'host') return hostTier({ bytes: sizeFlag(value!) });
      if (kind === 'redis') return redisTier({ url: value!, required: true });
      const [, directory, size] = /^(.+):([^:/]+)$/.exec(value ?? '') ?? [];
      if (kind === 'disk' && directory !== undefined) return diskTier({ directory, bytes: sizeFlag(size!), admit: 'all' });
    } catch (error) {
      if (isKvError(error)) throw new InvalidArgumentError(`In ${part}: ${error.message}`);
      throw error;
    }
    throw new InvalidArgumentError(`It must be tiers such as host=64GiB,disk=/var/cache/kv:1TB,redis=redis://127.0.0.1:6379, not ${part}.`);
  });
}
