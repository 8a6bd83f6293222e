// Rows of the hostile table for tiers: what makes one, and the contract that checks one. None of them is opened.

import * as kv from 'virtual-kv';
import { engineContract, StoreFaults, tierContract } from 'virtual-kv/testing';

import { importanceRows } from './importance-rows.js';
import type { Rows } from './table.js';

export const tierRows: Readonly<Record<string, Rows>> = {
  ...importanceRows,
  redisTier: {
    call: () => ({ run: kv.redisTier, meant: [{
      url: 'redis://user:password@127.0.0.1:1/0', name: 'x', required: true, ttlSeconds: 1, findTimeoutMs: 1, getTimeoutMs: 1, putTimeoutMs: 1,
      connectTimeoutMs: 1, queueBytes: 1, concurrentWrites: 1, readConnections: 1, damaged: 'keep',
      breaker: { failures: 1, coolDownMs: 1, maxCoolDownMs: 1 },
    }] }),
  },
  diskTier: { call: () => ({ run: kv.diskTier, meant: [{ directory: '/dev/null/store', bytes: 2 ** 24, durability: 'none', admit: 'all', threads: 1, direct: false, chunkBytes: 4_096, name: 'x' }] }) },
  StoreFaults: {
    new: null, clear: null, held: null, counts: null, points: null, startJournal: null, journalLength: null, takeJournal: null,
    open: () => {
      const faults = new StoreFaults();
      return {
        run: async (...given: Parameters<StoreFaults['open']>) => {
          try {
            await (await faults.open(...given)).close();
          } catch (error) {
            if (!kv.isKvError(error, 'KV_STORE_UNAVAILABLE')) throw error; // there is no such folder
          }
        },
        meant: [{ directory: '/dev/null/store', bytes: 2 ** 24, namespace: new Uint8Array(3), durability: 'none', chunkBytes: 8_192, queueBytes: 1, threads: 1, direct: false }],
      };
    },
    add: () => {
      const faults = new StoreFaults();
      return { run: faults.add.bind(faults), meant: [{ call: 'write', nth: 1, times: 1, error: 'ENOSPC', mostBytes: 1, flippedBit: 1, kills: false, holds: false }] };
    },
    killAt: () => {
      const faults = new StoreFaults();
      return { run: faults.killAt.bind(faults), meant: ['file-made', 1] };
    },
  },
  CacheTiers: {
    metrics: null, ready: null, settled: null,
    hasPrefilled: (world) => {
      const tiers = world.tiers();
      return { run: tiers.hasPrefilled.bind(tiers), meant: [100, 10] };
    },
    reorder: (world) => {
      const tiers = world.tiers();
      return { run: tiers.reorder.bind(tiers), meant: [{ mostBlocks: 1, signal: new AbortController().signal }] };
    },
  },
  hostTier: { call: () => ({ run: kv.hostTier, meant: [{ bytes: 4096, keeps: 'important' }] }) },
  engineContract: { call: () => ({ run: engineContract, meant: [() => { throw new Error('not called'); }, { tolerance: 0.01 }] }) },
  tierContract: { call: () => ({ run: tierContract, meant: [() => kv.redisTier({ url: '127.0.0.1:1' })] }) },
};
