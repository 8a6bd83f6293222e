// InjectedFailures: lets one thing under a cache with tiers fail at a time: calls of the driver, the files of a disk tier, or a redis-server,
// which is killed or emptied. Import it before a disk tier opens: it opens the stores of disk tiers, with the faults of their directory.

import { StoreFaults } from 'virtual-kv/testing';

import type { Random } from '#internal/base/random.js';
import { DiskStore } from '#internal/store/disk-store.js';
import type { CacheBench } from '../../helpers/cache.js';
import type { RedisServer } from '../../helpers/redis-server.js';
import type { TierFailures } from './tier-world.js';

const faults = new Map<string, StoreFaults>();
/** Weak: a store keeps the whole cache of its world. */
const stores = new Map<string, WeakRef<DiskStore>>();
Object.assign(DiskStore, {
  open: async (...[options, events]: Parameters<typeof DiskStore.open>): Promise<DiskStore> => {
    const store = await faultsOf(options.directory).open(options, events);
    stores.set(options.directory, new WeakRef(store));
    return store;
  },
});

/** The faults of all stores that open in this directory. */
export function faultsOf(directory: string): StoreFaults {
  let known = faults.get(directory);
  if (known === undefined) faults.set(directory, known = new StoreFaults());
  return known;
}

/** The store that a disk tier opened last in this directory. */
export function storeOf(directory: string): DiskStore {
  return stores.get(directory)!.deref()!;
}

const driverCalls = ['cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemcpyHtoD', 'cuMemcpyDtoH', 'cuMemcpyHtoDAsync', 'cuMemcpyDtoHAsync'] as const;

export class InjectedFailures implements TierFailures {
  readonly #bench: CacheBench;
  readonly #disk: StoreFaults;
  readonly #server: RedisServer | undefined;
  #isServerDown = false;

  /** @param server Undefined: there is no Redis tier. */
  constructor(bench: CacheBench, directory: string, server?: RedisServer) {
    this.#bench = bench;
    this.#disk = faultsOf(directory);
    this.#server = server;
  }

  async begin(random: Random): Promise<void> {
    const nth = 1 + random.integer(20);
    const times = random.chance(0.5) ? 1 : 2 ** 32;
    switch (random.integer(this.#server === undefined ? 3 : 5)) {
      case 0: return this.#disk.add({ nth, times, error: (['EIO', 'ENOSPC', 'EINTR'] as const)[random.integer(3)]! });
      case 1: return this.#disk.add({ call: 'read', nth, times, flippedBit: random.integer(4096) });
      case 2:
        if (this.#bench.device === undefined) this.#bench.fail('mmap-map', nth);
        else for (const call of driverCalls) if (random.chance(0.5)) this.#bench.fail(call, 1 + random.integer(5), 2);
        return;
      case 3:
        this.#isServerDown = true;
        return this.#server!.kill();
      default: if (!this.#isServerDown) await this.#server!.client.flushall();
    }
  }

  async end(): Promise<void> {
    this.#bench.forgiveAll();
    this.#disk.clear();
    if (this.#isServerDown) await this.#server!.restart();
    this.#isServerDown = false;
  }
}
