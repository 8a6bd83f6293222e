// The stores of a directory, whatever their namespaces: for tools that look after them and do not know what they are
// of.

import { closeSync, constants, existsSync, openSync, readdirSync, readSync } from 'node:fs';
import path = require('node:path');

import { createError } from '../base/errors.js';
import { openStore, type DiskStore } from './disk-store.js';
import { readStoreOptions } from './disk-store-options.js';

/** No limit of a tool's own: what there is fits. */
const manyBytes = 2 ** 50;
const digestAt = 64;
const digestBytes = 32;

/** A store of a directory, named by its folder. */
export interface NamespaceStore {
  readonly name: string;
  readonly store: DiskStore;
}

/**
 * Opens each in turn, and closes it before the next. Rejects with KV_STORE_UNAVAILABLE where there is no such
 * directory, else as `DiskStore.open`.
 */
export async function* openNamespaces(directory: string): AsyncGenerator<NamespaceStore> {
  const options = readStoreOptions({ directory, bytes: manyBytes, namespace: new Uint8Array(0), durability: 'sync' });
  for (const name of namesIn(directory)) {
    const identity = path.join(directory, name, 'identity');
    if (!existsSync(identity)) continue; // never finished: there is nothing in it
    const store = await openStore(options, digestOf(identity), {});
    try {
      yield { name, store };
    } finally {
      await store.close();
    }
  }
}

function namesIn(directory: string): string[] {
  try {
    return readdirSync(directory).filter((name) => /^kvs-[0-9a-f]{32}$/.test(name)).toSorted();
  } catch (cause) {
    const { syscall = 'readdir', errno = 0, code = '' } = cause as NodeJS.ErrnoException;
    throw createError('KV_STORE_UNAVAILABLE', { path: directory, call: syscall, status: Math.abs(errno), statusName: code }, { cause });
  }
}

/**
 * The digest that a store's identity names, its first half as the folder is named: so the store itself says where the
 * two differ, or what the identity is that cannot be read.
 */
function digestOf(identity: string): Uint8Array {
  const digest = new Uint8Array(digestBytes);
  try {
    const file = openSync(identity, constants.O_RDONLY | constants.O_NONBLOCK); // a pipe would be waited for
    try {
      readSync(file, digest, 0, digestBytes, digestAt);
    } finally {
      closeSync(file);
    }
  } catch { /* the store says it */ }
  const folder = path.basename(path.dirname(identity)).slice('kvs-'.length);
  digest.set(Buffer.from(folder, 'hex'));
  return digest;
}
