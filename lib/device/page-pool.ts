// PagePool: physical pages under one budget. A cache makes its own unless one is passed in; several caches (several
// models) may share one, and then take idle rows from each other when pages are short. A pool owns the driver that it
// opened.

import { createHmac, randomBytes } from 'node:crypto';

import { createError } from '../base/errors.js';
import { formatNumber } from '../base/format.js';
import { integer, optional, readOptions, type Field } from '../base/options.js';
import { ChangeSignal } from './wait.js';
import { driverField, openDriver, type Driver, type DriverChoice } from './driver.js';
import { countPages, native, type NativePool, type NativePoolCounts } from './native.js';
import { checkStack, PolicyGuard } from './cache-calls.js';
import { unclosed, WeakUsers, type Membership, type Unclosed, type UserMemory } from './weak-users.js';

/** Options of `PagePool`. */
export interface PagePoolOptions {
  /**
   * Bytes of mapped and free pages together, rounded down to whole pages. At least one page, at most the driver's
   * memory (on mock: any number). `setBudget` changes it later.
   */
  readonly memoryBudgetBytes: number;
  /** A driver, or the kind of driver to open, which the pool closes. Default `auto`. */
  readonly driver?: Driver | DriverChoice | undefined;
  /** Bytes of a page, a multiple of the driver's granularity. Default: the driver's (2 MiB). */
  readonly pageBytes?: number | undefined;
  /**
   * Device memory that new pages leave free, whatever the budget, for the code of kernels, cuBLAS and the engine. A
   * page that would cut into it is refused as if the device had refused it. In bytes, 0 or more; default 512 MiB on
   * cuda, otherwise 0.
   */
  readonly headroomBytes?: number | undefined;
  /**
   * Bytes of free pages, within the budget, that the caches' mappers create ahead of growth: a GPU needs 30 to 200 µs
   * to create one. 0 or more; default 1 GiB on cuda, otherwise 0.
   */
  readonly readyBytes?: number | undefined;
}

/** Always freePages + mappedPages + quarantinedPages = createdPages. A page counts once, however often it is mapped. */
export type PoolCounts = NativePoolCounts;

/** cuBLAS takes 32 to 64 MiB, the code of all kernels a few, local memory of a context some 100. */
const cudaHeadroomBytes = 512 * 2 ** 20;
const cudaReadyBytes = 2 ** 30;

/** Physical pages under one budget, for one cache or several. For one Node thread. */
export class PagePool {
  /** The driver whose pages they are. */
  readonly driver: Driver;
  /** Bytes of a page. */
  readonly pageBytes: number;
  /** Device memory that new pages leave free. */
  readonly headroomBytes: number;
  readonly #native: NativePool;
  readonly #ownsDriver: boolean;
  readonly #users = new WeakUsers<PoolMember>();
  readonly #membership: Membership<undefined>;
  /** @internal */
  readonly guard = new PolicyGuard();
  /** Raised when slots or pages of a cache may have become free, or the budget has changed. @internal */
  readonly capacity = new ChangeSignal();
  readonly #tenantKey = randomBytes(32);
  #budgetBytes: number;
  /** Whether the budget was lowered below what there is. */
  #isAboveBudget = false;
  #isClosed = false;

  /**
   * Opens a pool, which creates no page yet. Throws KV_INVALID_OPTION, and what `Driver.open` throws.
   * `choosePageBytes` is for a cache's own pool: bytes of a page where no option says them.
   */
  constructor(options: PagePoolOptions, choosePageBytes?: (driver: Driver) => number) {
    const given = readOptions('PagePool', options, {
      memoryBudgetBytes: integer({ min: 1 }), driver: driverField, pageBytes: pageBytesField,
      headroomBytes: optional(integer()),
      readyBytes: optional(integer()),
    });
    const { driver, isOwn } = openDriver(given.driver);
    this.driver = driver;
    this.#ownsDriver = isOwn;
    try {
      const { granularityBytes, defaultPageBytes } = driver.info;
      const pageBytes = given.pageBytes ?? choosePageBytes?.(driver) ?? defaultPageBytes;
      integer({
        min: granularityBytes, multipleOf: granularityBytes,
        hint: () => `The ${driver.kind} driver's granularity is ${formatNumber(granularityBytes)} bytes; leave ` +
          '`pageBytes` out for the page size that suits this driver best.',
      })(pageBytes, { owner: 'PagePool', option: 'pageBytes' });
      this.pageBytes = pageBytes;
      this.#checkBudget(given.memoryBudgetBytes, pageBytes);
      this.#budgetBytes = given.memoryBudgetBytes;
      const isCuda = driver.kind === 'cuda';
      const { headroomBytes = isCuda ? cudaHeadroomBytes : 0, readyBytes = isCuda ? cudaReadyBytes : 0 } = given;
      this.headroomBytes = headroomBytes;
      this.#native = new (native().NativePool)(
        driver.native, pageBytes, given.memoryBudgetBytes, headroomBytes, Math.floor(readyBytes / pageBytes),
      );
    } catch (error) {
      if (isOwn) driver.close();
      throw error;
    }
    this.#membership = driver.addUser(this.#native);
    unclosed.register(this, unclosedPool(this.#native, driver, isOwn), this);
  }

  /** Whether it is an opened PagePool: false for an object that only has its prototype. @internal */
  static isInstance(value: unknown): value is PagePool {
    return typeof value === 'object' && value !== null && #tenantKey in value;
  }

  /** Bytes the pool may hold, as last set. */
  get memoryBudgetBytes(): number {
    return this.#budgetBytes;
  }

  /** Whether `close` has ended. Every other call then throws KV_CLOSED. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Counts the pages by state. */
  counts(): PoolCounts {
    this.#checkOpen('count its pages');
    return countPages(this.#native);
  }

  /**
   * Raises or lowers the budget; caches may be in use. Lowering reclaims idle rows and free pages at once; sequences
   * keep their pages and those set aside for their prompts until they release them, and until then nothing else can
   * grow. In bytes, at least 1, at most the driver's memory. When the driver refuses, the budget is unchanged.
   */
  setBudget(memoryBudgetBytes: number): void {
    integer({ min: 1 })(memoryBudgetBytes, { owner: 'PagePool', option: 'memoryBudgetBytes' });
    checkStack();
    this.#checkOpen('set its budget');
    this.guard.check('set the budget');
    this.driver.checkAlive();
    this.#checkBudget(memoryBudgetBytes, 1);
    const fewerPages = countPages(this.#native).budgetPages - Math.floor(memoryBudgetBytes / this.pageBytes);
    const budgetBytes = this.#budgetBytes;
    this.#budgetBytes = memoryBudgetBytes; // first: what eviction policies withhold follows from it
    try {
      if (fewerPages > 0) {
        this.quiesce();
        this.#reclaim(fewerPages - this.#native.available());
      }
      this.#native.setBudget(memoryBudgetBytes);
    } catch (error) {
      this.#budgetBytes = budgetBytes;
      throw error;
    }
    this.#isAboveBudget ||= fewerPages > 0;
    this.capacity.raise();
    this.driver.checkAlive();
  }

  /** Gives free pages back to the system. */
  trim(): void {
    this.#checkOpen('trim it');
    this.guard.check('trim the page pool');
    this.#native.trim(0);
    this.driver.checkAlive();
  }

  /**
   * Releases every page, and closes the driver if the pool opened it. Throws KV_DRIVER_IN_USE, and changes nothing,
   * while a cache uses the pool, or anything but the pool a driver that it opened. Idempotent; after a failure of the
   * driver call it again.
   */
  close(): void {
    if (!this.#isClosed) {
      this.guard.check('close the page pool');
      this.checkUsers(0);
      this.#native.close();
      this.#isClosed = true;
      this.driver.removeUser(this.#membership.memory);
      unclosed.unregister(this);
    }
    if (this.#ownsDriver) this.driver.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /**
   * Throws KV_DRIVER_IN_USE where more than `caches` caches use the pool, or anything but the pool a driver that it
   * opened. @internal
   */
  checkUsers(caches: number): void {
    const users = this.#users.count - caches;
    if (users > 0) throw createError('KV_DRIVER_IN_USE', { owner: 'PagePool', users });
    const driverUsers = this.driver.users - 1;
    if (this.#ownsDriver && driverUsers > 0) {
      throw createError('KV_DRIVER_IN_USE', { owner: 'Driver', users: driverUsers });
    }
  }

  /** @internal */
  get native(): NativePool {
    this.#checkOpen('use it');
    return this.#native;
  }

  /** Registers a user, which keeps the membership; when the user is collected, its `memory` is closed. @internal */
  addUser(user: PoolMember, memory: UserMemory): Membership<PoolMember> {
    this.#checkOpen('use it');
    return this.#users.add(user, memory);
  }

  /** @internal */
  removeUser(memory: UserMemory): void {
    this.#users.remove(memory);
    this.capacity.raise();
  }

  /**
   * Counts the pages that growth could take: free, not created yet, or reclaimable from idle rows of any cache.
   * @internal
   */
  obtainablePages(): number {
    return Math.max(0, this.#native.available() + this.#reclaimablePages());
  }

  /** Counts the pages that caches keep though nothing that runs needs them. @internal */
  withheldPages(): number {
    let pages = 0;
    for (const user of this.#suppliers()) pages += user.withheldPages();
    return pages;
  }

  /** Whether a cache withholds text for now: its pages may become obtainable without any call. @internal */
  withholdsForNow(): boolean {
    return this.#suppliers().some((user) => user.withholdsForNow());
  }

  /**
   * Makes `pages` pages available by reclaiming idle rows, `first`'s before other caches'. False: there are too few.
   * @internal
   */
  makeRoom(pages: number, first: PageUser): boolean {
    const missing = pages - this.#native.available();
    if (pages === 0 || missing <= 0) return true;
    if (this.#reclaimablePages() < missing) return false;
    this.#reclaim(missing, first);
    return true;
  }

  /** As `makeRoom`, but counts only pages that exist: for when the device has no memory for new ones. @internal */
  makeRoomInFreePages(pages: number, first: PageUser): boolean {
    const missing = pages - countPages(this.#native).freePages;
    if (missing <= 0) return true;
    return this.#reclaimablePages() >= missing && this.#reclaim(missing, first) >= missing;
  }

  /**
   * Unmaps about `pages` pages of idle rows, for when the system refuses more mappings. False: there are none.
   * @internal
   */
  makeRoomForMappings(pages: number, first: PageUser): boolean {
    let unmapped = 0;
    for (const user of this.#suppliers(first)) {
      if (unmapped < pages) unmapped += user.unmapIdle(pages - unmapped);
    }
    return unmapped > 0;
  }

  /** Stops every mapper until its next request, so that no page is counted while it is being mapped. @internal */
  quiesce(): void {
    for (const user of this.#suppliers()) user.quiesce();
  }

  /**
   * Before a refusal for want of pages stands: ends the transfers of every cache, and asks it whether queued work is
   * over. True when pages may be free for it. @internal
   */
  pollFences(): boolean {
    let heard = false;
    for (const { leases, tiers } of this.#users.all()) {
      if (tiers?.interrupt() === true) heard = true;
      if (leases.pollFences()) heard = true;
    }
    return heard;
  }

  /** Reclaims idle rows and free pages beyond a lowered budget. @internal */
  keepToBudget(): void {
    if (!this.#isAboveBudget) return;
    const excess = -this.#native.available();
    if (excess > 0) this.#reclaim(excess);
    const { createdPages, budgetPages, freePages } = countPages(this.#native);
    if (createdPages > budgetPages) this.#native.trim(Math.max(0, freePages - (createdPages - budgetPages)));
    this.#isAboveBudget = this.#native.available() < 0 || countPages(this.#native).createdPages > budgetPages;
  }

  /**
   * A tenant's number for the addon, the same in all caches of the pool: 64 bits of a hash under a key of the pool's
   * own, so that no name is stored and a client cannot construct a name with the same number. Requests without a tenant
   * have a number too. Never 0 or 2⁶⁴ − 1, which the addon reserves. @internal
   */
  tenantNumber(tenant: string | undefined): bigint {
    const name = tenant === undefined ? '' : `=${tenant}`;
    const number = createHmac('sha256', this.#tenantKey).update(name, 'utf16le').digest().readBigUInt64LE();
    return number === 0n || number === 2n ** 64n - 1n ? 1n : number;
  }

  /**
   * Throws KV_INVALID_OPTION for a budget beyond the driver's memory. A simulated device may be smaller, so that a test
   * can exhaust it.
   */
  #checkBudget(memoryBudgetBytes: number, min: number): void {
    const { kind } = this.driver;
    const max = kind === 'mock' ? Number.MAX_SAFE_INTEGER : this.driver.memory().totalBytes;
    const hint = memoryBudgetBytes < min
      ? `A page has ${formatNumber(min)} bytes.`
      : `That is all the ${kind} driver has.` +
        (kind === 'host' ? ' For pages that are never touched, open one with a larger `memoryBytes`.' : '');
    integer({ min, max, hint })(memoryBudgetBytes, { owner: 'PagePool', option: 'memoryBudgetBytes' });
  }

  /** All caches' supplies, `first` before the others. */
  #suppliers(first?: PageUser): PageUser[] {
    const suppliers = first === undefined ? [] : [first];
    for (const { supply } of this.#users.all()) if (supply !== first) suppliers.push(supply);
    return suppliers;
  }

  #reclaimablePages(): number {
    let pages = 0;
    for (const user of this.#suppliers()) pages += user.reclaimablePages();
    return pages;
  }

  #reclaim(pages: number, first?: PageUser): number {
    let freed = 0;
    for (const user of this.#suppliers(first)) {
      if (freed < pages) freed += user.reclaim(pages - freed);
    }
    return freed;
  }

  #checkOpen(operation: string): void {
    if (this.#isClosed) throw createError('KV_CLOSED', { operation, owner: 'PagePool' });
  }
}

/** Must not refer to the pool. Its caches were collected before it, since they refer to it. */
function unclosedPool(memory: NativePool, driver: Driver, ownsDriver: boolean): Unclosed {
  return {
    what: 'A PagePool',
    giveBack: () => {
      memory.close();
      driver.removeUser(memory);
      if (ownsDriver) driver.close();
    },
  };
}

const pageBytesField: Field<number | undefined> = (value, place) =>
  value === undefined ? undefined : integer({ min: 1 })(value, place);

/** A cache that can give pages back. */
export interface PageUser {
  /** Pages that `reclaim` could free now. */
  reclaimablePages(): number;
  /**
   * Pages that it keeps though nothing that runs needs them: cached text that its eviction policy withholds, and slots
   * in quarantine.
   */
  withheldPages(): number;
  /** Whether some of that text may be given up without being used again: a pin that ends. */
  withholdsForNow(): boolean;
  /** Frees at least `pages` pages, or all that are reclaimable; returns how many it freed. */
  reclaim(pages: number): number;
  /**
   * Unmaps at least `pages` pages of idle slots, or all, whether that frees them or not; returns how many it unmapped.
   */
  unmapIdle(pages: number): number;
  /** Stops taking pages in the background until its next request. */
  quiesce(): void;
}

/** A cache of the pool. */
export interface PoolMember {
  readonly supply: PageUser;
  readonly leases: {
    /** Asks whether queued work is over; true when some is, and memory was kept for it. */
    pollFences(): boolean;
  };
  /** Undefined without tiers. */
  readonly tiers: {
    /** Ends loads and stores under way; returns whether there were any. */
    interrupt(): boolean;
  } | undefined;
}
