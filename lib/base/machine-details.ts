// MachineDetails: the numbers in errors of what the package stands on, by code: the driver, disks, and stores over a
// network. Types only.

/** Which call of the driver or system failed, and what it returned. */
export interface DriverCall {
  /** The call's own name: `cuMemMap`, `mmap`. */
  readonly call: string;
  /** What it returned: a CUresult, an errno. 0 when the driver refused before calling. */
  readonly status: number;
  /** That status by name: `CUDA_ERROR_OUT_OF_MEMORY`, `ENOMEM`; empty when there is none. */
  readonly statusName: string;
}

/** Why a driver cannot be opened on this machine; native/driver.h has the same list as `Unavailable`. */
export type UnavailableReason =
  | 'no-library' | 'no-device' | 'stub-library' | 'init-failed' | 'no-such-device' | 'memory-refused' | 'forked';

/** Why a store over a network, which answers, does not do what a tier needs. */
export type RemoteRefusal =
  | 'credentials' | 'permission' | 'database' | 'protocol' | 'is-cluster' | 'no-cluster' | 'full' | 'other';

export interface MachineDetails {
  // Driver
  KV_DRIVER_UNAVAILABLE: DriverCall & {
    readonly driver: string;
    readonly reason: UnavailableReason;
    readonly device?: number | undefined;
  };
  KV_DRIVER_UNSUPPORTED: DriverCall & {
    readonly device: number;
    readonly deviceName?: string | undefined;
    readonly feature: string;
  };
  KV_DRIVER_TOO_OLD: DriverCall & {
    /** The entry point that is missing. */
    readonly missing: string;
    /** As the driver returns it: 10010 for 10.1. 0 when unknown. */
    readonly driverVersion: number;
  };
  KV_CUBLAS_UNAVAILABLE: {
    /** The entry point that the library lacks; absent when it could not be opened. */
    readonly missing?: string | undefined;
  };
  KV_KERNELS_REFUSED: DriverCall & {
    /** The log of the driver's compiler; may be empty. */
    readonly log: string;
  };
  KV_COMMAND_FAILED: {
    /** How many commands were queued before it since the stream was last known to be done, counting from 0. */
    readonly command: number;
  };
  KV_DRIVER_CALL_FAILED: DriverCall & {
    readonly address?: number | undefined;
    readonly bytes?: number | undefined;
    readonly slot?: number | undefined;
  };
  KV_DRIVER_LOST: DriverCall & { readonly driver: string };
  KV_DRIVER_MISUSE: DriverCall & {
    /** Or the handle of a stream or an event, for a call that works on one. */
    readonly address: number;
    readonly bytes: number;
  };

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
  KV_TIER_STALLED: {
    /** The names of those that did not answer. */
    readonly tiers: readonly string[];
    /** Calls of theirs that were not answered. */
    readonly calls: number;
    /** How long none was. */
    readonly timeoutMs: number;
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
    /** The format that it was written in. */
    readonly version: number;
    /** The one that this version has. */
    readonly latestVersion: number;
  };
  KV_STORE_FAILED: DriverCall & { readonly path: string };
}
