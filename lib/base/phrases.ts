// Phrases: the parts of error messages that need more than a template: lists, ranges, driver results, received values,
// what a name was probably meant to be. Each function returns readable text for any input, and never throws.

import { distance } from 'fastest-levenshtein';
import { types } from 'node:util';

import { formatCount, formatList, formatNumber, printable } from './format.js';
import { isDetached, typedArrayKind } from './typed-arrays.js';
import type { DriverCall, ErrorDetails, UnavailableReason } from './details.js';

export const ownerNouns = {
  KvCache: 'cache', PagePool: 'page pool', Driver: 'driver', Mapper: 'mapper', MockDevice: 'mock device',
  OnlineScheduler: 'scheduler', Kernels: 'kernel set', DenseKernels: 'kernel set', DeviceMemory: 'device memory',
  EncoderCache: 'encoder cache', RedisTier: 'Redis tier', DiskStore: 'disk store', ModelServer: 'server',
  BackgroundTokenizer: 'tokenizer', LlamaEngine: 'engine',
  OnnxDecoder: 'decoder',
} as const;

export const unavailable: Readonly<Record<UnavailableReason, (
  details: ErrorDetails['KV_DRIVER_UNAVAILABLE'],
) => string>> = {
  'no-library': () => "libcuda.so.1 was not found. Install the NVIDIA driver, or use `driver: 'host'`.",
  'no-device': () => "the NVIDIA driver found no GPU. Check `nvidia-smi`, or use `driver: 'host'`.",
  'stub-library': () => "libcuda.so.1 is the CUDA toolkit's stub. Put the NVIDIA driver's own library before it.",
  'init-failed': (
    details,
  ) => `it did not start${callResult(details)}. Check \`nvidia-smi\`, or use \`driver: 'host'\`.`,
  'no-such-device': ({ device }) => `there is no device ${device ?? ''}`.trimEnd() + '. Choose another with `device`.',
  'memory-refused': (details) => `the system refused memory${callResult(details)}. Check the limits of this process.`,
  forked: () => 'this process is a fork of the one that opened it. Open the driver after the fork.',
};

/** Joins the parts that are neither empty nor undefined, with spaces. */
export function joined(...parts: readonly (string | undefined)[]): string {
  return parts.filter((part) => part).join(' ');
}

/** What cannot grow: a new sequence where there are no slots, else the slots by number, or by count above four. */
export function cannotGrow(slots: readonly number[]): string {
  if (slots.length === 0) return 'A new sequence cannot start';
  if (slots.length === 1) return `Slot ${slots[0]} cannot grow`;
  if (slots.length > 4) return `${formatNumber(slots.length)} slots of the batch cannot grow together`;
  return `Slots ${formatList(slots, 'and')} cannot grow together`;
}

/** `: cuInit returned CUDA_ERROR_UNKNOWN (999)`, or nothing when no call was made. */
export function callResult(call: DriverCall): string {
  return call.statusName || call.status ? `: ${call.call} returned ${statusText(call)}` : '';
}

export function statusText({ status, statusName }: DriverCall): string {
  return statusName === '' ? formatNumber(status) : `${statusName} (${status})`;
}

/** What has happened to the work that a failed call was part of. */
export function aftermath(call: string): string {
  if (/^(cuLaunchKernel|cublas)/.test(call)) {
    return 'Kernels that were launched before it may still run, and their results do not count: discard the batch, and compute its tokens again.';
  }
  if (/^cuMemcpy(HtoD|DtoH)/.test(call)) return 'Some of the bytes may have been copied.';
  return 'The change was undone, or its slot is out of service until the cache closes (`counts().quarantinedSlots`).';
}

export function apiVersion(version: number): string {
  return version === 0 ? 'unknown' : `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}

/**
 * The first two places with their reasons, and the number of others; a loader may try a dozen, and `details` has them
 * all.
 */
export function placesTried(tried: ErrorDetails['KV_ADDON_NOT_FOUND']['tried']): string {
  const shown = tried.slice(0, 2).map(({ path, reason }) => `${path} (${reason})`);
  const others = tried.length - shown.length;
  return [...shown, ...(others > 0 ? [`${formatCount('other place', others)}`] : [])].join('; ')
    || 'no place was tried';
}

/** A name from outside as a message shows it: its beginning, safe to print. */
export function shownName(name: string): string {
  return printable(name.length > 100 ? `${name.slice(0, 100)}…` : name);
}

/** A received value as a message shows it: short, and safe to print. */
export function describe(value: unknown): string {
  switch (typeof value) {
    case 'number': return describeNumber(value);
    case 'string': return value.length > 60 ? `a string of ${formatNumber(value.length)} characters`
      : `'${printable(value)}'`;
    case 'bigint': return `${value}n`;
    case 'function': return 'a function';
    case 'object': return value === null ? 'null' : describeObject(value);
    default: return String(value);
  }
}

/** Its digits in groups where these say all of it: 1.0000001 is not "1", which may be allowed. */
function describeNumber(value: number): string {
  if (!(Math.abs(value) < 1e21)) return String(value);
  const grouped = formatNumber(value, 6);
  return Number(grouped.replaceAll(',', '')) === value ? grouped : String(value);
}

const typedArrayNames = new Set([
  Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array,
  Float64Array, BigInt64Array, BigUint64Array,
].map(({ name }) => name));

/** Names the object's class, where it has one. */
function describeObject(value: object): string {
  try {
    if (Array.isArray(value)) return value.length === 0 ? 'an empty array' : 'an array';
    if (types.isProxy(value)) return 'a Proxy'; // what it says of itself is what its handler makes up
    if (isDetached(value)) return `a detached ${typedArrayKind(value)}`;
    const { constructor } = value;
    const name = typeof constructor === 'function' ? printable(String(constructor.name)) : '';
    if (name === '' || name === 'Object' || name.length > 40) return 'an object';
    if (typedArrayNames.has(name) && typedArrayKind(value) === undefined) {
      return `an object with the prototype of a ${name}`;
    }
    return `${/^(?!Uint)[AEIOU]/.test(name) ? 'an' : 'a'} ${name}`;
  } catch {
    return 'a revoked proxy';
  }
}

export function capitalize(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function nextPowerOfTwo(value: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(1, value)));
}

/** The one of `names` that was probably meant; undefined when none is close enough. */
export function closest(name: string, names: readonly string[]): string | undefined {
  const limit = Math.max(1, Math.floor(name.length / 3));
  let best: { name: string; edits: number; start: number } | undefined;
  for (const candidate of names) {
    if (Math.abs(name.length - candidate.length) > limit) continue; // a name from outside may have a million characters
    const edits = distance(name.toLowerCase(), candidate.toLowerCase());
    const start = commonStart(name, candidate);
    if (edits > limit || (best !== undefined && (edits - best.edits || best.start - start) >= 0)) continue;
    best = { name: candidate, edits, start };
  }
  return best?.name;
}

/** Length of the common start: of equally close names, `closest` takes the one with the longest. */
function commonStart(a: string, b: string): number {
  let at = 0;
  while (at < a.length && a[at] === b[at]) at += 1;
  return at;
}

/** A sentence that ends an error's message; undefined where no choice is near. */
export function didYouMean(text: string, choices: readonly string[]): string | undefined {
  const found = closest(text, choices);
  return found === undefined ? undefined : `Did you mean '${found}'?`;
}
