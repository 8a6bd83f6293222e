// CacheRooms: what stands behind a KvCache's front door, opened and joined: addresses, slots, rows, leases, steps, prefixes. Each
// room knows only those that are handed to it here. When one cannot be opened, nothing stays reserved. Decides nothing.

import { createError } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import { Accounts } from './accounts.js';
import { Admission } from './admission.js';
import { CacheNews } from './cache-news.js';
import { openPool, type ReadKvCacheOptions } from './kv-cache-options.js';
import { LateErrors } from './late-errors.js';
import { computeLayout, type Layout, type TensorPlacement } from '../layout/layout.js';
import type { NativeCache } from '../device/native.js';
import { openNativeCache } from './open-native-cache.js';
import type { PagePool } from '../device/page-pool.js';
import type { PolicyGuard } from '../device/policy-guard.js';
import type { ReadPrefixCacheOptions } from './prefix-options.js';
import { Prefixes } from './prefixes.js';
import { Retirement } from './retirement.js';
import { Room } from './room.js';
import { RowSupply } from './row-supply.js';
import { SlotFences } from './slot-fences.js';
import { SlotLeases } from './slot-leases.js';
import { SlotTable } from './slot-table.js';
import { Stamps } from './stamps.js';
import { Steps } from './steps.js';
import type { Unclosed } from '../device/unclosed.js';
import { SlotViews } from './views.js';

/** A tensor of the cache as a kernel needs it: address of element [0, 0, 0, 0], shape, strides, dtype. */
export interface Tensor extends TensorPlacement {
  /** Address of element [0, 0, 0, 0]; the same as long as the cache is open. */
  readonly address: bigint;
}

export interface CacheRooms {
  readonly pool: PagePool;
  /** Whether no other cache uses the pool, which closes with this one. */
  readonly ownsPool: boolean;
  readonly layout: Layout;
  /** Number of a tenant for the addon; one for all where nothing is scrubbed. */
  readonly tenantNumber: (tenant: string | undefined) => bigint;
  readonly tensors: readonly Tensor[];
  readonly native: NativeCache;
  readonly table: SlotTable;
  readonly views: SlotViews;
  readonly late: LateErrors;
  readonly retirement: Retirement;
  readonly fences: SlotFences;
  readonly prefixes: Prefixes;
  readonly supply: RowSupply;
  readonly leases: SlotLeases;
  readonly news: CacheNews;
  readonly steps: Steps;
  readonly accounts: Accounts;
  readonly room: Room;
  readonly stamps: Stamps;
}

/** What the rooms need of the front door. */
export interface FrontDoor {
  /** The cache itself, for events and warnings. */
  readonly cache: object;
  /** Throws KV_CLOSED, naming the operation, unless the cache is open. */
  readonly checkOpen: (operation: string) => void;
  /** Releases the sequence in a slot. */
  readonly release: (slot: number) => void;
}

/** Throws KV_OUT_OF_ADDRESS_SPACE, KV_INVALID_OPTION and what the driver throws. */
export function openRooms(read: ReadKvCacheOptions, door: FrontDoor): CacheRooms {
  const { pool, isOwn } = openPool(read);
  let native: NativeCache | undefined;
  try {
    const { model, slots, maxTokens, scrub, mapper } = read;
    const layout = computeLayout({ model, layout: read.layout, slots, maxTokens, pageBytes: pool.pageBytes });
    checkRows(layout);
    checkBudget(layout, pool, isOwn);
    const { hasStreams } = pool.driver.info;
    const fences = new SlotFences({ driver: () => pool.driver.native, slots, stream: hasStreams ? read.stream : undefined });
    const table = new SlotTable(layout, fences);
    native = openNativeCache(pool, layout, table, { scrub: scrub !== 'off', mapper: mapper === 'background' });
    const tenantNumber = scrub === 'off' ? () => 1n : (tenant: string | undefined) => pool.tenantNumber(tenant);
    return { ownsPool: isOwn, tenantNumber, ...furnish(read, door, { native, pool, layout, table, fences }, isOwn) };
  } catch (error) {
    native?.close();
    if (isOwn) pool.close();
    throw error;
  }
}

/** With a policy and a clock that cannot call the cache; a clock that throws stands still, and that is a late error. */
function guarded(options: ReadPrefixCacheOptions | 'off', guard: PolicyGuard, late: LateErrors): ReadPrefixCacheOptions | 'off' {
  if (options === 'off') return options;
  const clock = guard.wrap('prefixCache.now', options.now);
  let time = 0;
  const now = (): number => {
    late.attempt(() => time = clock());
    return time;
  };
  return { ...options, policy: guard.wrapEviction(options.policy), now };
}

/** What is kept per row of a slot fits one typed array, and its number a 32-bit integer. */
const mostRows = 2 ** 28;

function checkRows({ maxTokens, maxRows }: Layout): void {
  if (maxRows <= mostRows) return;
  throw createError('KV_INVALID_SHAPE', {
    option: 'maxTokens', value: maxTokens, problem: `makes ${formatNumber(maxRows)} rows of a slot; there can be ${formatNumber(mostRows)}`,
    hint: 'Lower it, or use larger `pageBytes`.',
  });
}

/** With less than a row no token could ever be computed. */
function checkBudget(layout: Layout, pool: PagePool, isOwn: boolean): void {
  const rowPages = layout.pagesFor(1);
  if (pool.counts().budgetPages >= rowPages) return;
  const rowBytes = formatNumber(rowPages * layout.pageBytes);
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'KvCache', option: isOwn ? 'memoryBudgetBytes' : 'pool',
    expected: isOwn ? `at least ${rowBytes}` : `a PagePool with a budget of at least ${rowBytes} bytes`, received: pool.memoryBudgetBytes,
    hint: `One row of this cache has ${formatCount('page', rowPages)} of ${formatNumber(layout.pageBytes)} bytes.`,
  });
}

type Memory = Pick<CacheRooms, 'native' | 'pool' | 'layout' | 'table' | 'fences'>;

function furnish(read: ReadKvCacheOptions, door: FrontDoor, { native, pool, layout, table, fences }: Memory, ownsPool: boolean) {
  const tensors = Object.freeze(layout.tensors.map((tensor) => Object.freeze({
    ...tensor, address: native.address(tensor.reservation) + BigInt(tensor.offsetBytes),
  })));
  const late = new LateErrors(door.cache);
  const retirement = new Retirement(fences);
  const memory = { native, pool, layout, table, fences, views: new SlotViews(native, door.cache, late) };
  const prefixes = new Prefixes({ ...memory, ...door, late, options: guarded(read.prefixCache, pool.guard, late) });
  const { index, shared, texts, groups, idlePrefixes, sharing } = prefixes;
  const { guard } = pool;
  const supply = new RowSupply({ ...memory, cached: idlePrefixes, policy: guard.wrap('reclaim', read.reclaim) });
  const parts = { ...memory, index, shared, texts, groups, idlePrefixes, sharing, supply, retirement, late };
  const admission = new Admission({ ...parts, placement: guard.wrap('placement', read.placement) });
  const eagerRows = Math.min(read.eagerRows, layout.maxRows);
  const leases = new SlotLeases({ ...parts, admission }, { eagerRows, idleRowsLimit: read.idleRowsLimit });
  const room = new Room({ native, layout, table, sharing, fences }, tensors[0]!.address);
  return {
    ...memory, tensors, late, retirement, prefixes, supply, leases, room,
    steps: new Steps({ ...parts, growth: read.growth, guard }),
    news: new CacheNews({ native, late, leases, prefixes }),
    accounts: new Accounts({ ...parts, leases, ownsPool }),
    stamps: new Stamps(native, layout, table, room),
  };
}

/** Must not refer to the cache: the addon's part of it, and the pool that knows it, closed if it is the cache's own. */
export function unclosedCache({ native, pool, ownsPool }: CacheRooms): Unclosed {
  return {
    what: 'A KvCache',
    giveBack: () => {
      native.close();
      pool.removeUser(native);
      if (ownsPool) pool.close();
    },
  };
}
