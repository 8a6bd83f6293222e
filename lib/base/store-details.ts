// StoreDetails: the numbers in errors of stores below the device, by code: disk stores, and tiers over a network.

import type { DriverCall } from './driver-call.js';

/** Why a store over a network, which answers, does not do what a tier needs. */
export type RemoteRefusal = 'credentials' | 'permission' | 'protocol' | 'is-cluster' | 'no-cluster' | 'full' | 'other';

export interface StoreDetails {
  // Tiers over a network
  KV_TIER_UNREACHABLE: {
    /** The tier's `name`. */
    readonly tier: string;
    /** Without user and password. */
    readonly address: string;
    /** What happened, as the client says it. */
    readonly problem: string;
  };
  KV_TIER_REFUSED: {
    readonly tier: string;
    readonly address: string;
    readonly reason: RemoteRefusal;
    /** What the store replied. */
    readonly reply: string;
  };
  KV_TIER_DAMAGED: {
    readonly tier: string;
    /** The store's key of the block. */
    readonly key: string;
    /** Ends the sentence "the value …". */
    readonly problem: string;
  };

  // Disk store
  KV_STORE_UNAVAILABLE: DriverCall & { readonly path: string };
  KV_STORE_LOCKED: {
    readonly path: string;
    /** The process that has it open, 0 where unknown. */
    readonly process: number;
  };
  KV_STORE_FOREIGN: { readonly path: string };
  KV_STORE_VERSION: {
    readonly path: string;
    /** The format that it was written in, 0 where unknown. */
    readonly version: number;
    /** The latest that this version reads. */
    readonly latestVersion: number;
  };
  KV_STORE_FAILED: DriverCall & { readonly path: string };
}
