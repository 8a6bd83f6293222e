// Views whose ArrayBuffer cannot be detached any more, because its holder has transferred it elsewhere or forbidden it: from
// the moment at which they would have been detached they show zeros, never the memory that the slot has next; writing to them
// changes nothing of the cache; and the call in which it is found out succeeds.
// Alone in its process: it collects garbage and takes signals.

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { readFileSync } from 'node:fs';
import { markAsUntransferable } from 'node:worker_threads';

import test from 'ava';

import type { Sequence, TensorView } from 'virtual-kv';

import { CacheBench, cacheTest, cacheTests, drivers, pageBytes, rowTokens } from '../helpers/cache.js';
import { native } from '#internal/device/native.js';

interface Transferable extends ArrayBuffer {
  transfer(bytes?: number): Transferable;
  transferToFixedLength(): Transferable;
}

const canTransfer = 'transfer' in ArrayBuffer.prototype;
/** Node 24.16 and later: nobody detaches a buffer that was marked, this package included. */
const isMarkFinal = canTransfer && !canDetachMarked();
/** Node 24.16 and later, and 26, detach all external buffers when their environment ends, and abort at one that was marked. */
const isMarkFatal = Number(process.versions.node.split('.')[0]) >= 24;

function canDetachMarked(): boolean {
  const buffer = new ArrayBuffer(8) as Transferable;
  markAsUntransferable(buffer);
  try {
    buffer.transfer();
    return true;
  } catch {
    return false;
  }
}

/** How a view escapes; each returns the buffer that is left of it. */
const escapes: readonly (readonly [string, boolean, (buffer: Transferable) => ArrayBuffer])[] = [
  ['`transfer`', canTransfer, (buffer) => buffer.transfer()],
  ['`transferToFixedLength`', canTransfer, (buffer) => buffer.transferToFixedLength()],
  ['`transfer` and then a transfer list', canTransfer, (buffer) => {
    const moved = buffer.transfer();
    return structuredClone(moved, { transfer: [moved] });
  }],
  ['a mark as untransferable', isMarkFinal && !isMarkFatal, (buffer) => {
    markAsUntransferable(buffer);
    return buffer;
  }],
];

interface Revocation {
  readonly title: string;
  readonly rows?: number;
  /** Of the sequence with the view. */
  readonly tokens: number;
  /** Leads to the revocation; returns the sequences that must be intact afterwards, by the key of their stamps. */
  act(bench: CacheBench, viewed: Sequence): ReadonlyMap<number, Sequence>;
}

const revocations: readonly Revocation[] = [
  {
    title: 'a release',
    tokens: 2 * rowTokens,
    act: (bench, viewed) => {
      viewed.release();
      const next = bench.sequenceOf(2 * rowTokens, 'another tenant');
      bench.t.is(next.slot, viewed.slot);
      bench.cache.stamp(next, 0, 2 * rowTokens, 2);
      return new Map([[2, next]]);
    },
  },
  {
    title: 'a growth of another sequence that takes its tail',
    rows: 4,
    tokens: 3 * rowTokens,
    act: (bench, viewed) => {
      viewed.truncate(rowTokens);
      const other = bench.sequenceOf(3 * rowTokens);
      bench.cache.stamp(other, 0, 3 * rowTokens, 2);
      return new Map([[1, viewed], [2, other]]);
    },
  },
  {
    title: 'a lowered budget',
    rows: 4,
    tokens: 3 * rowTokens,
    act: (bench, viewed) => {
      viewed.truncate(rowTokens);
      bench.cache.pool.setBudget(4 * pageBytes);
      return new Map([[1, viewed]]);
    },
  },
  {
    title: 'a copy on write',
    tokens: rowTokens + 10,
    act: (bench, viewed) => {
      const fork = viewed.fork();
      bench.compute(viewed, 5);
      bench.cache.stamp(viewed, rowTokens + 10, 5, 1);
      return new Map([[1, viewed], [1, fork]]);
    },
  },
];

function bytesOf(buffer: ArrayBuffer): Uint8Array {
  return new Uint8Array(buffer);
}

function isZero(buffer: ArrayBuffer): boolean {
  return bytesOf(buffer).every((byte) => byte === 0);
}

/** A sequence with stamped tokens, and what is left of a view of its first tensor. */
function escaped(bench: CacheBench, tokens: number, escape: (buffer: Transferable) => ArrayBuffer): { sequence: Sequence; view: TensorView; left: ArrayBuffer } {
  const sequence = bench.sequenceOf(tokens, 'a tenant');
  bench.cache.stamp(sequence, 0, tokens, 1);
  const view = sequence.view(0);
  const bytes = view.byteLength;
  const left = escape(view.buffer as Transferable);
  bench.t.is(left.byteLength, bytes);
  bench.t.false(isZero(left), 'it shows the memory until then');
  return { sequence, view, left };
}

for (const [way, isThere, escape] of escapes) {
  if (!isThere) {
    test.skip(`a view that escaped by ${way} (this Node.js does not let it)`, () => undefined);
    continue;
  }
  for (const { title, rows, tokens, act } of revocations) {
    cacheTests(`a view that escaped by ${way} shows zeros after ${title}, and what is written to it is lost`, { ...(rows === undefined ? {} : { rows }), idleRowsLimit: 20 }, (t, bench) => {
      const { sequence, left } = escaped(bench, tokens, escape);
      const { lateErrors } = bench.cache.metrics;
      const intact = act(bench, sequence);
      t.is(bench.cache.metrics.lateErrors, lateErrors + 1);
      t.true(isZero(left));
      bytesOf(left).fill(0xff);
      for (const [key, other] of intact) t.true(bench.isIntact(other, key), `key ${key}`);
      bench.cache.verify();
      for (const other of intact.values()) {
        t.true(other.view(0).length > 0, 'a new view shows the memory');
        const before = bench.cache.metrics.lateErrors;
        other.release();
        t.is(bench.cache.metrics.lateErrors, before, 'the new one was detached');
      }
    });
  }

  for (const on of drivers) {
    test(`a view that escaped by ${way} can be read and written after \`close\`, with zeros in it (${on})`, (t) => {
      const bench = new CacheBench(t, { on });
      const { left } = escaped(bench, 2 * rowTokens, escape);
      bench.close();
      t.true(isZero(left));
      bytesOf(left).fill(0xff);
      t.true(bytesOf(left).every((byte) => byte === 0xff));
    });
  }

  cacheTests(`after ${way} the next release says so in a late error, and succeeds`, {}, async (t, bench) => {
    const { cache } = bench;
    const { sequence } = escaped(bench, 10, escape);
    const published: unknown[] = [];
    const listen = (message: unknown) => {
      if ((message as { cache: unknown }).cache === cache) published.push(message);
    };
    subscribe('virtual-kv:late-error', listen);
    sequence.release();
    await Promise.resolve();
    unsubscribe('virtual-kv:late-error', listen);
    t.true(sequence.isReleased);
    t.is(cache.counts().activeSlots, 0);
    t.is(published.length, 1);
    t.like(published[0], { cache, lateErrors: 1, error: { code: 'KV_VIEW_TRANSFERRED', details: { slot: sequence.slot, buffers: 1 } } });
  });
}

if (canTransfer) {
  cacheTests('`view` refuses while a view of that tensor is transferred, and gives others', {}, (t, bench) => {
    const { sequence } = escaped(bench, 10, (buffer) => buffer.transfer());
    const error = t.throws(() => sequence.view(0), { code: 'KV_VIEW_TRANSFERRED' });
    t.like(error, { recovery: 'fix', details: { slot: sequence.slot, buffers: 1 } });
    t.true(sequence.view(1).length > 0);
  });

  cacheTests('a property of the buffer that hides its length changes nothing', {}, (t, bench) => {
    const { sequence, view, left } = escaped(bench, 10, (buffer) => {
      Object.defineProperty(buffer, 'byteLength', { value: buffer.byteLength });
      return buffer.transfer();
    });
    t.true(view.buffer.byteLength > 0);
    sequence.release();
    t.is(bench.cache.metrics.lateErrors, 1);
    t.true(isZero(left));
  });

  cacheTests('a thousand escaped views cost nothing but their addresses', {}, (t, bench) => {
    const kept: ArrayBuffer[] = [];
    for (let round = 0; round < 1000; round += 1) {
      const { sequence, left } = escaped(bench, 10, (buffer) => buffer.transfer());
      sequence.release();
      kept.push(left);
    }
    t.true(kept.every(isZero));
    const { createdPages, quarantinedPages } = bench.pool();
    t.true(createdPages <= 8 && quarantinedPages === 0, `${createdPages} pages`);
  });
}

if (isMarkFatal) test.skip('a view that its holder marked as untransferable (this Node.js aborts when it ends with one)', () => undefined);
else cacheTests('a view that its holder marked as untransferable is detached all the same, or shows zeros', {}, (t, bench) => {
  const sequence = bench.sequenceOf(10);
  bench.cache.stamp(sequence, 0, 10, 1);
  const view = sequence.view(0);
  markAsUntransferable(view.buffer);
  sequence.release();
  t.true(isMarkFinal ? view.length > 0 && view.every((element) => element === 0) : view.length === 0);
  t.is(bench.cache.metrics.lateErrors, isMarkFinal ? 1 : 0);
});

cacheTests('a fork of the process does not inherit the memory that views show', {}, (t, bench) => {
  const shared = (): number => readFileSync('/proc/self/smaps', 'utf8').split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m)
    .filter((mapping) => /memfd:virtual-kv/.test(mapping) && /^VmFlags:.* dc\b/m.test(mapping)).length; // "do not copy"
  const before = shared();
  bench.sequenceOf(10).view(0);
  t.is(shared(), before + 1);
});

test('the addon detaches a buffer, once and again', (t) => {
  const buffer = new ArrayBuffer(8);
  const view = new Uint8Array(buffer);
  native().detach(buffer);
  native().detach(buffer);
  t.is(buffer.byteLength, 0);
  t.is(view.length, 0);
});

// Programs without external ArrayBuffers

cacheTest('where Node-API forbids external buffers, `view` says so, and all else works', { on: 'host' }, (t, bench) => {
  const addon = native() as { externalBufferStatus: number };
  t.is(addon.externalBufferStatus, 0);
  const sequence = bench.sequenceOf(10);
  addon.externalBufferStatus = 22;
  try {
    const error = t.throws(() => sequence.view(0), { code: 'KV_VIEW_FORBIDDEN' });
    t.like(error, { recovery: 'fix', details: { status: 22 } });
  } finally {
    addon.externalBufferStatus = 0;
  }
  bench.cache.stamp(sequence, 0, 10, 1);
  t.true(bench.isIntact(sequence, 1));
});
