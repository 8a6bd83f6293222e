// Parses flag values for commander: counts, sizes, dtypes, tiers. Each parser returns a value or throws commander's
// InvalidArgumentError, so that the message names the flag. Knows no command.

import { InvalidArgumentError } from 'commander';

import { isKvError } from '../base/errors.js';
import { formatList, formatNumber, parseBytes } from '../base/format.js';
import { diskTier, dtypes, hostTier, redisTier, type Dtype, type Tier } from '../index.js';

/** Returns a parser of integers, at least `min`. `8_192` and `8,192` are 8192. */
export function countFrom(min: number): (text: string) => number {
  return (text) => {
    const value = /^\d[\d,_]*$/.test(text) ? Number(text.replace(/[,_]/g, '')) : Number.NaN;
    if (!Number.isSafeInteger(value) || value < min) {
      throw new InvalidArgumentError(`It must be an integer, at least ${formatNumber(min)}.`);
    }
    return value;
  };
}

/** Parses a size to bytes, at least 1: `2MiB`, `64KiB`, `8GiB`, `80GB`, `2097152`. */
export function sizeFlag(text: string): number {
  const bytes = parseBytes(text);
  if (bytes === undefined || bytes < 1) {
    throw new InvalidArgumentError('It must be a size, such as 2MiB, 64KiB, 8GiB or 2097152.');
  }
  return bytes;
}

/** Parses the size of a page to bytes: a multiple of 4 KiB, the smallest page of any machine. */
export function pageSizeFlag(text: string): number {
  const bytes = sizeFlag(text);
  if (bytes % 4096 !== 0) throw new InvalidArgumentError('It must be a multiple of 4 KiB.');
  return bytes;
}

const dtypeAliases = new Map<string, Dtype>(Object.entries({
  fp32: 'float32', f32: 'float32', float: 'float32',
  fp16: 'float16', f16: 'float16', half: 'float16',
  bf16: 'bfloat16',
  fp8: 'float8', f8: 'float8', fp8_e4m3: 'float8', fp8_e5m2: 'float8',
  float8_e4m3fn: 'float8', float8_e4m3: 'float8', float8_e5m2: 'float8',
  i8: 'int8',
} as const));

/** The dtype of a name as flags, model files and other tools write it (`fp16`, `torch.bfloat16`); undefined if unknown. */
export function dtypeNamed(name: string): Dtype | undefined {
  const plain = name.toLowerCase().replace(/^torch\./, '');
  return dtypes.find((dtype) => dtype === plain) ?? dtypeAliases.get(plain);
}

export function dtypeFlag(text: string): Dtype {
  const dtype = dtypeNamed(text);
  if (dtype === undefined) throw new InvalidArgumentError(`It must be ${formatList(dtypes)}.`);
  return dtype;
}

/** What `--tiers` may have, for help texts. */
export const tiersHelp = 'below the device: host=SIZE, disk=DIRECTORY:SIZE, redis=URL, separated by commas, the fastest first';

/** Parses tiers, the fastest first. They take all text at once: what a run computes once is the point. */
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
