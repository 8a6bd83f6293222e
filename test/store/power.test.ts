// A loss of power: whatever subset of unsynced blocks or sectors, sizes and names reached the disk, what was
// acknowledged with durability `sync`, or before a `sync()`, is there, what was acknowledged as removed stays so, and
// no byte is wrong.

import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import type { ExecutionContext } from 'ava';

import { Random } from '#internal/base/random.js';
import type { Durability } from '#internal/store/disk-store-options.js';
import { StoreFaults, type FileChange } from '#internal/store/store-faults.js';
import { seedOf } from '../helpers/seed.js';
import { assertAccounts, inFolder, keyOf, KiB, options, orderOf, put, scale, versionOf, withStore, type Sizes } from './store-world.js';
import { slow } from '../runner/slow.js';

const seed = seedOf('disk store power');
const sizes: Sizes = [17 * KiB, 304];
const numbers = Array.from({ length: 16 }, (_, number) => number);

/** What was acknowledged about a block, and how long the journal was then. */
interface Acknowledged {
  readonly at: number;
  readonly number: number;
  /** The version that is stored; undefined: none. */
  readonly version: number | undefined;
}

/** A file, whatever its name is. */
interface Inode {
  readonly writes: { readonly index: number; readonly offset: number; readonly bytes: Uint8Array }[];
  /** Its writes before this change of the journal are on disk for good. */
  syncedBefore: number;
}

/**
 * What may be on disk where power is lost after `cut` changes, of which parts of `unit` bytes are written or not, and
 * names that no sync of their folder followed are changed or not: files by path.
 */
function diskAfter(journal: readonly FileChange[], cut: number, random: Random, unit: number): Map<string, Buffer> {
  const past = journal.slice(0, cut);
  const isNameSafe = (index: number, file: string): boolean => past.some(({ call, path: synced, offset }) => call === 'syncFolder' && synced === path.dirname(file) && index < offset);
  const now = new Map<string, Inode>(); // by name, before the loss
  const later = new Map<string, Inode>(); // and behind it
  past.forEach(({ call, path: file, other, offset, bytes }, index) => {
    const change = (chance: number, apply: () => void): void => {
      if (isNameSafe(index, file) || random.chance(chance)) apply();
    };
    if (call === 'open' && !now.has(file)) {
      const inode: Inode = { writes: [], syncedBefore: 0 };
      now.set(file, inode);
      change(0.7, () => { later.set(file, inode); });
    } else if (call === 'rename') {
      const inode = now.get(file)!;
      now.delete(file);
      now.set(other, inode);
      change(0.5, () => {
        if (later.get(file) === inode) later.delete(file);
        later.set(other, inode);
      });
    } else if (call === 'unlink') {
      now.delete(file);
      change(0.5, () => { later.delete(file); });
    } else if (call === 'write') {
      now.get(file)!.writes.push({ index, offset, bytes });
    } else if (call === 'sync') {
      now.get(file)!.syncedBefore = offset;
    }
  });
  return new Map([...later].map(([file, { writes, syncedBefore }]) => {
    let content = Buffer.alloc(0);
    for (const { index, offset, bytes } of writes) {
      for (let at = 0; at < bytes.length; at += unit) {
        if (index >= syncedBefore && random.chance(0.5)) continue;
        const part = bytes.subarray(at, at + unit);
        const end = offset + at + part.length;
        if (content.length < end) content = Buffer.concat([content, Buffer.alloc(end - content.length)]);
        content.set(part, offset + at);
      }
    }
    return [file, content];
  }));
}

/** By block: the versions that it may have where power is lost after `cut` changes, undefined for none. */
function allowedAt(cut: number, { begun, acknowledged, syncs }: Life, number: number, durability: Durability): (number | undefined)[] {
  const isOf = (entry: Acknowledged): boolean => entry.number === number && entry.at <= cut;
  // With `interval`, what was acknowledged counts from the next sync on.
  const sync = syncs.findLast(({ at }) => at <= cut);
  const certain = durability === 'sync' ? acknowledged.filter(isOf) : acknowledged.slice(0, sync?.acknowledged ?? 0).filter(isOf);
  const changes = begun.filter(isOf);
  return [certain.at(-1)?.version, ...changes.slice(certain.length).map(({ version }) => version)];
}

interface Life {
  readonly journal: readonly FileChange[];
  /** Of each block in turn: what was asked for, and what of it was answered. */
  readonly begun: readonly Acknowledged[];
  readonly acknowledged: readonly Acknowledged[];
  /** When `sync` resolved, and how much was acknowledged when it was called. */
  readonly syncs: readonly { readonly at: number; readonly acknowledged: number }[];
}

/** Puts, removals and new orders one after the other, and how files changed by them. */
async function live(t: ExecutionContext, directory: string, durability: Durability, random: Random): Promise<Life> {
  const faults = new StoreFaults();
  faults.startJournal();
  const acknowledged: Acknowledged[] = [];
  const begun: Acknowledged[] = [];
  const syncs: { at: number; acknowledged: number }[] = [];
  const store = await faults.open(options(directory, { threads: 1, durability }));
  const state = new Map<number, number | undefined>();
  let reordered = 0;
  for (let version = 1; version <= 70; version += 1) {
    const number = random.integer(numbers.length);
    if (version % 12 === 11) {
      const { length } = acknowledged;
      await store.sync();
      syncs.push({ at: faults.journalLength(), acknowledged: length });
    }
    if (version % 4 === 1) {
      reordered += (await store.reorder(keyOf(random.integer(numbers.length)), orderOf(random))).stored ? 1 : 0;
    }
    const next = state.get(number) === undefined ? version : undefined;
    begun.push({ at: faults.journalLength(), number, version: next });
    if (next === undefined) t.true((await store.remove([keyOf(number)])).isRecorded);
    else t.true((await put(store, number, version, sizes)).stored);
    acknowledged.push({ at: faults.journalLength(), number, version: next });
    state.set(number, next);
  }
  t.true(reordered > 2, `${reordered} blocks were reordered`);
  await store.close();
  return { journal: faults.takeJournal(), begun, acknowledged, syncs };
}

/** Writes what a loss of power left of `from` into the new folder `to`. */
function writeDisk(files: ReadonlyMap<string, Buffer>, from: string, to: string): void {
  mkdirSync(to);
  for (const [file, bytes] of files) {
    const copy = path.join(to, path.relative(from, file));
    mkdirSync(path.dirname(copy), { recursive: true });
    writeFileSync(copy, bytes);
  }
}

for (const [durability, what] of [['sync', 'acknowledged'], ['interval', 'acknowledged before a sync']] as const) {
  slow('hundreds of losses of power')(`after a loss of power everything ${what} is as it was acknowledged (seed ${seed})`, (t) => inFolder(async (directory) => {
    const random = new Random(seed);
    const here = path.join(directory, 'here');
    const life = await live(t, here, durability, random);
    const { journal, begun } = life;
    t.true(journal.length > (durability === 'sync' ? 300 : 180), `${journal.length} changes`);
    for (let turn = 0; turn < (durability === 'sync' ? 30 : 15) * Math.max(1, scale); turn += 1) {
      const cut = turn === 0 ? journal.length : random.integer(journal.length);
      const disk = path.join(directory, `disk-${turn}`);
      writeDisk(diskAfter(journal, cut, random, turn % 3 === 2 ? 512 : 4 * KiB), here, disk);
      await withStore(options(disk), async (opened) => {
        assertAccounts(t, opened, disk);
        for (const number of numbers) {
          const versions = begun.filter((entry) => entry.number === number).flatMap(({ version }) => version ?? []);
          const found = await versionOf(t, opened, number, versions, sizes);
          const allowed = allowedAt(cut, life, number, durability);
          t.true(allowed.includes(found), `power lost after ${cut} changes: block ${number} is ${found ?? 'absent'}, not ${allowed.map((one) => one ?? 'absent').join(' or ')}`);
        }
        t.true((await put(opened, 999)).stored);
      });
      rmSync(disk, { recursive: true });
    }
  }));
}

slow('hundreds of losses of power')(`a loss of power in the middle of a reorder costs no block that it moves (seed ${seed})`, (t) => inFolder(async (directory) => {
  const random = new Random(seed);
  const faults = new StoreFaults();
  faults.startJournal();
  const here = path.join(directory, 'here');
  const store = await faults.open(options(here, { threads: 1 }));
  for (const number of numbers) t.true((await put(store, number, 1, sizes)).stored);
  const began = faults.journalLength();
  for (const number of numbers) t.true((await store.reorder(keyOf(number), orderOf(random))).stored);
  await store.close();
  const journal = faults.takeJournal();
  for (let turn = 0; turn < 60 * Math.max(1, scale); turn += 1) {
    const cut = began + 1 + random.integer(journal.length - began);
    const disk = path.join(directory, `disk-${turn}`);
    writeDisk(diskAfter(journal, cut, random, 4 * KiB), here, disk);
    await withStore(options(disk, { durability: 'none' }), async (opened) => {
      for (const number of numbers) t.is(await versionOf(t, opened, number, [1], sizes), 1, `power lost after ${cut} changes: block ${number}`);
      t.is((await opened.verify()).corrupt.length, 0);
    });
    rmSync(disk, { recursive: true });
  }
}));
