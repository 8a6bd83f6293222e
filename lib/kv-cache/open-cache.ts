// Opens a cache: builds its parts in the order in which they depend on each other, each from those before it. When one
// cannot be opened, nothing stays reserved.

import { randomInt } from 'node:crypto';

import { createError, isKvError } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import { checkTime } from '../base/options.js';
import { native as addon, type NativeCache } from '../device/native.js';
import type { PagePool } from '../device/page-pool.js';
import { BackgroundErrors, Lifetime, type PolicyGuard } from '../device/cache-calls.js';
import type { Unclosed } from '../device/weak-users.js';
import { computeLayout, type Layout, type LayerSetLayout } from '../layout/layout.js';
import { readModelShape } from '../layout/model-shape.js';
import type { SelectedOf, EvictionPolicy, EvictionPolicyFactory } from '../prefix/eviction/eviction-policy.js';
import { PrefixIndex } from '../prefix/prefix-index.js';
import { PromptEncoder, type TextSource } from '../prefix/prompt-encoder.js';
import { openSideTensors, type SideTensorsToOpen } from '../side/open-side-tensors.js';
import { SideRows } from '../side/side-rows.js';
import type { SideTensors } from '../side/side-tensors.js';
import { Admission, SlotLeases } from '../cache/admission.js';
import { BatchRows, RowsAhead, Steps } from '../cache/steps.js';
import type { CacheTiers } from '../tiers/cache-tiers.js';
import { CachedRows } from '../cache/cached-rows.js';
import { CachedTexts } from './cached-texts.js';
import { FinishedTexts } from '../tiers/demotions.js';
import { openPool, type ReadKvCacheOptions, type ReadPrefixCacheOptions } from './kv-cache-options.js';
import { RowSupply } from '../cache/row-supply.js';
import { openTiers, transferSlots } from '../tiers/open-tiers.js';
import { PrefixEvents } from './prefix-events.js';
import { CacheStatistics, PrefixStatistics } from './statistics.js';
import { Prefixes, Prompts } from './prefixes.js';
import { RowRegistry } from '../cache/row-registry.js';
import { RowSharing } from '../cache/row-sharing.js';
import type { SequenceOwner } from '../cache/sequence.js';
import { SequenceTokens } from '../cache/sequence-tokens.js';
import { SlotAccess } from '../cache/slot-access.js';
import { SlotChoice } from '../cache/slot-choice.js';
import { SlotFences } from '../cache/slot-fences.js';
import { SlotMemory, Slots } from '../cache/slots.js';
import { WindowSet, WindowSets } from '../cache/window-sets.js';
import { SlotViews } from '../device/slot-views.js';

/** The parts of an open cache. */
export interface CacheParts extends SequenceOwner {
  readonly steps: Steps;
  readonly ahead: RowsAhead;
  /** Whether no other cache uses the pool, which closes with this one. */
  readonly ownsPool: boolean;
  readonly prefixes: Prefixes;
  readonly cached: CachedRows;
  readonly supply: RowSupply;
  readonly side: SideTensors;
  readonly statistics: CacheStatistics;
  readonly access: SlotAccess;
  /** Undefined without tiers. */
  readonly tiers: CacheTiers | undefined;
  /** As computed from the model: `memory.layout` has an empty set before these where no layer keeps all tokens. */
  readonly layout: Layout;
  /** Closes the memory of the layer sets. Does not refer to the cache. */
  readonly closeMemory: () => void;
  /** Closes the memory of the side tensors. Does not refer to the cache. */
  readonly closeSide: () => void;
}

/** `cache`: for events and warnings. Throws KV_OUT_OF_ADDRESS_SPACE, KV_INVALID_OPTION and what the driver throws. */
export function openCache(read: ReadKvCacheOptions, cache: object): CacheParts {
  const model = readModelShape(read.model);
  const size = { model, layout: read.layout, slots: read.slots + slotsForTransfers(read), maxTokens: read.maxTokens };
  const { pool, isOwn } = openPool(read, size);
  const natives: NativeCache[] = [];
  const closings: (() => void)[] = [closingOf(natives)];
  try {
    const layout = computeLayout({
      ...size, pageBytes: pool.pageBytes, memoryBudgetBytes: pool.memoryBudgetBytes, driverKind: pool.driver.kind,
    });
    checkSets(layout, read);
    const inner = withFullSet(layout);
    checkRows(layout);
    checkBudget(layout, pool, isOwn);
    const { native: driver, info: { hasStreams } } = pool.driver;
    const fences = new SlotFences({
      driver: () => driver, slots: layout.slots, stream: hasStreams ? read.stream : undefined,
      isQueued: hasStreams && read.work === 'queued', hasWindows: inner.sets.length > 1,
    });
    const slots = new Slots(inner, fences, read.slots);
    const memories = inner.sets.map((set, index) => {
      const isQuarantined = slots.quarantines[index]!;
      const rows = index === 0 ? slots.rows : new Int32Array(layout.slots);
      const first = new Int32Array(index === 0 ? 0 : layout.slots);
      const native = openNative(pool, layout, set, { rows, isQuarantined, first }, read, natives[0]);
      natives.push(native);
      return { layout: set, native, first, rows, isQuarantined };
    });
    return openParts(
      { ...read, model }, cache, layout, { memories, pool, layout: inner, slots, fences, closings }, isOwn);
  } catch (error) {
    for (const close of closings.reverse()) close();
    if (isOwn) pool.close();
    throw error;
  }
}

/** Must not refer to the cache: the addon's part of it, and the pool that knows it, closed if it is the cache's own. */
export function unclosedCache({ memory, closeMemory, closeSide, ownsPool }: CacheParts): Unclosed {
  const { native, pool, fences } = memory;
  return {
    what: 'A KvCache',
    giveBack: () => {
      fences.abandon();
      closeSide();
      closeMemory();
      pool.removeUser(native);
      if (ownsPool) pool.close();
    },
  };
}

const noRows = {
  commonTokenBytes: 0, pagesPerRow: 0, rowBytes: 0, tokensPerRow: Infinity, maxRows: 0,
  rowsFor: () => 0, pagesFor: () => 0, pagesBetween: () => 0, pagesIn: () => 0, usedBytes: () => 0,
};

/** With a set of no layers first, where none keeps all tokens: lengths and slots are those of the first set. */
function withFullSet(layout: Layout): Layout {
  if (layout.sets[0]!.kind === 'full') return layout;
  const rows = { ...noRows, tokensIn: () => layout.maxTokens };
  const empty: LayerSetLayout = {
    ...rows, kind: 'full', layers: [], tensors: [], reservations: { first: 0, count: 0 }, layout: 'fused',
    layoutReason: 'given', firstToken: () => 0, firstRow: () => 0, mostRows: () => 0,
  };
  return { ...layout, ...rows, sets: [empty, ...layout.sets] };
}

/** The rows of one layer set, by slot, as the addon writes them. */
interface SetMemory {
  readonly layout: LayerSetLayout;
  readonly native: NativeCache;
  readonly first: Int32Array;
  readonly rows: Int32Array;
  readonly isQuarantined: Uint8Array;
}

/** Closes them. Idempotent; after a failure of the driver call it again. Refers to nothing else, not to the cache. */
function closingOf(natives: readonly NativeCache[]): () => void {
  return () => { for (const native of natives) native.close(); };
}

interface OpenMemory {
  /** Of each layer set; the first has all tokens. */
  readonly memories: readonly SetMemory[];
  readonly pool: PagePool;
  readonly layout: Layout;
  readonly slots: Slots;
  readonly fences: SlotFences;
  /** What closes memory that is open so far, the first opened first. */
  readonly closings: (() => void)[];
}

function openParts(
  read: ReadKvCacheOptions, cache: object, outer: Layout,
  { memories, pool, layout, slots, fences, closings }: OpenMemory, ownsPool: boolean,
): CacheParts {
  const { guard } = pool;
  const background = new BackgroundErrors(cache);
  const isScrubbed = read.scrub !== 'off';
  const views = memories.map(({ native }) => new SlotViews(native, cache, background));
  const windows = memories.slice(1).map((memory, index) =>
    new WindowSet({ ...memory, pageBytes: layout.pageBytes, views: views[index + 1]! }));
  const memory = new SlotMemory({
    native: memories[0]!.native, pool, layout, slots, fences, views: views[0]!, background,
    windows: windows.length === 0 ? undefined : new WindowSets(windows, slots, fences, { ...read, isScrubbed }),
    isScrubbed,
  });
  const natives = memories.map(({ native }) => native);
  const options = guarded(read.prefixCache, guard, background);
  const { index, encoder, events, texts, selected } = openIndex(options, cache, memory);
  const registry = new RowRegistry(memory, index);
  const { side, closeMemory: closeSide } = openSideTensors(sideToOpen(read, pool, layout), {
    nodes: index.texts.tree.nodes, withheld: index.withheld, lengths: slots, background, capacity: pool.capacity,
    guard, owner: cache,
  });
  closings.push(closeSide);
  for (const { cover } of side.all) index.listen(cover);
  const tokens = new SequenceTokens(memory, registry, index, side);
  const choice = new SlotChoice(memory, registry);
  const statistics = new PrefixStatistics(options === 'off' ? 1 : options.recentRequests);
  const finished = options === 'off' || options.tiers.length === 0 ? undefined : new FinishedTexts();
  const cached = new CachedRows(memory, {
    registry, tokens, choice, finished, onDropped: (dropped) => statistics.dropped(dropped),
  });
  const supply = new RowSupply(memory, cached, {
    eagerRows: Math.min(read.eagerRows, layout.maxRows), idleRowsLimit: read.idleRowsLimit,
  });
  const sharing = new RowSharing(memory, cached);
  const admission = new Admission(memory, supply, cached, sharing, side);
  const leases = new SlotLeases(memory, admission, supply, cached, sharing);
  const ahead = new RowsAhead(memory, supply, read.growth, read.mapper === 'background');
  const steps = new Steps(memory, new BatchRows(memory, supply, registry, sharing), cached, side, ahead);
  const lifetime = new Lifetime(guard);
  const tiers = options === 'off' || finished === undefined ? undefined
    : openTiers({ memory, leases, steps, sharing, cached, finished, encoder }, {
      ...options, blockTokens: options.tierBlockTokens, model: read.model,
    });
  if (tiers !== undefined) {
    texts.push(tiers);
    selected.of = tiers.selectedOf.bind(tiers);
    events?.followTiers(tiers.placedBlocks());
  }
  return {
    memory, cached, tokens, supply, side, sideRows: new SideRows(side, pool.driver), leases, steps, ahead, lifetime,
    layout: outer, ownsPool, closeSide, closeMemory: closingOf(natives),
    prefixes: new Prefixes(new Prompts(lifetime, encoder, layout.tensors), {
      texts: new CachedTexts(memory, leases, cached, side, tiers), statistics, events, isOn: options !== 'off', cache,
    }),
    tiers,
    statistics: new CacheStatistics(memory, supply, leases, cached, side, ownsPool),
    access: new SlotAccess(memory, sharing),
  };
}

function sideToOpen(
  { sideTensors, sideBudgetBytes, sideDriver, handOverSlots, slots: sequences, maxTokens, scrub }: ReadKvCacheOptions,
  pool: PagePool, layout: Layout,
): SideTensorsToOpen {
  const tokenBytes = layout.reservations.reduce((sum, reservation) => sum + reservation.tokenBytes, 0);
  return {
    tensors: sideTensors, budgetBytes: sideBudgetBytes, cachedTokens: Math.ceil(pool.memoryBudgetBytes / tokenBytes),
    slots: layout.slots, maxTokens,
    handOverSlots: handOverSlots ?? sequences, isScrubbed: scrub !== 'off', driver: pool.driver, sideDriver,
  };
}

/** `mapper`: of the first set, whose thread maps for all. */
function openNative(
  pool: PagePool, layout: Layout, set: LayerSetLayout, bound: Pick<SetMemory, 'rows' | 'isQuarantined' | 'first'>,
  read: ReadKvCacheOptions, mapper: NativeCache | undefined,
): NativeCache {
  const { pageBytes, slots, maxTokens } = layout;
  const { first, count } = set.reservations;
  const reservations = layout.reservations.slice(first, first + count);
  const options = {
    pageBytes, slots, maxTokens, scrub: read.scrub !== 'off', mapper: read.mapper === 'background' ? mapper ?? true : false,
    faultNames: Float64Array.from(process.env['VKV_DEBUG'] && pool.driver.kind === 'host' ? set.tensors : []),
    faultSet: layout.sets.indexOf(set),
    tokenBytes: Float64Array.from(reservations, ({ tokenBytes }) => tokenBytes),
    tensors: Float64Array.from(set.tensors.map((index) => layout.tensors[index]!).flatMap(
      ({ reservation, offsetBytes, tokenBytes }) => [reservation - first, offsetBytes, tokenBytes])),
  };
  try {
    const { rows, isQuarantined } = bound;
    return bound.first.length === 0
      ? new (addon().NativeCache)(pool.native, options, rows, isQuarantined)
      : new (addon().NativeCache)(pool.native, options, rows, isQuarantined, bound.first);
  } catch (error) {
    if (!isKvError(error, 'KV_OUT_OF_ADDRESS_SPACE')) throw error;
    throw createError('KV_OUT_OF_ADDRESS_SPACE', {
      bytes: layout.virtualBytes, reservations: layout.reservations.length, slots, maxTokens,
    }, { cause: error });
  }
}

interface OpenIndex {
  readonly index: PrefixIndex;
  readonly encoder: PromptEncoder;
  /** Undefined unless routers are told. */
  readonly events: PrefixEvents | undefined;
  /** Where names of items are in use. */
  readonly texts: TextSource[];
  /** What the eviction policy is told of selections, which tiers know of. */
  readonly selected: { of: SelectedOf };
}

/** The index of the cache's rows. With `off` it holds nothing after a release, and shares only what forks. */
function openIndex(
  options: ReadPrefixCacheOptions | 'off', cache: object, { layout, arithmetic, background, pool }: SlotMemory,
): OpenIndex {
  const hashSeed = randomInt(2 ** 48 - 1);
  const selected: OpenIndex['selected'] = { of: () => undefined };
  if (options === 'off') {
    const index = new PrefixIndex({ arithmetic, poolRows: 0, hashSeed });
    return { index, encoder: new PromptEncoder({ index }), events: undefined, texts: [], selected };
  }
  const { poolRows = Infinity, poolBytes = Infinity, tenantRows = Infinity, policy, endValues, now } = options;
  const index = new PrefixIndex({
    arithmetic, poolRows: Math.min(poolRows, Math.floor(poolBytes / layout.rowBytes)), tenantRows,
    policy, endValues, now, hashSeed,
    selected: (domain, extent) => selected.of(domain, extent),
    budgetRows: () => Math.floor(pool.memoryBudgetBytes / pool.pageBytes) / layout.pagesPerRow,
    onPolicyFailure: (error) => background.report(error),
  });
  const texts: TextSource[] = [index];
  const encoder =
    new PromptEncoder({ index: { forTexts: (visit) => { for (const source of texts) source.forTexts(visit); } } });
  const events =
    options.events === 'off' ? undefined : new PrefixEvents(cache, index, { ...options.events, names: encoder });
  return { index, encoder, events, texts, selected };
}

/**
 * With a policy and a clock that cannot call the cache; a clock that throws or returns no number stands still, and that
 * is a late error.
 */
function guarded(
  options: ReadPrefixCacheOptions | 'off', guard: PolicyGuard, background: BackgroundErrors,
): ReadPrefixCacheOptions | 'off' {
  if (options === 'off') return options;
  const clock = guard.wrap('prefixCache.now', options.now);
  let time = 0;
  const now = (): number => {
    background.attempt(() => time = checkTime(clock(), 'KvCache', 'prefixCache.now'));
    return time;
  };
  return { ...options, policy: guardedEviction(options.policy, guard), now };
}

/** Slots beside those of users' sequences, through which K and V go to tiers and come back. */
function slotsForTransfers({ prefixCache }: ReadKvCacheOptions): number {
  return prefixCache === 'off' || prefixCache.tiers.length === 0 ? 0 : transferSlots;
}

/** Until prefixes can be resumed in layers that have let go of their tokens, caches with such layers keep none. */
function checkSets({ sets, constantSets }: Layout, { prefixCache }: ReadKvCacheOptions): void {
  const planned = constantSets.find(({ kind }) => kind !== 'shared');
  if (planned !== undefined) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'range', owner: 'KvCache', option: 'model.layerSets', received: planned.kind,
      expected: 'sets of kind full, window, chunk and shared',
      hint: '`vkv plan` and `computeLayout` count the others; a later version keeps them.',
    });
  }
  const unsupported = sets.find(({ kind }) => kind !== 'full');
  if (unsupported === undefined || prefixCache === 'off') return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'KvCache', option: 'prefixCache', received: prefixCache,
    expected: `'off' with a layer set of kind \`${unsupported.kind}\``,
    hint: 'Such layers let go of tokens, so that a cached prompt could not be resumed there; a later version keeps ' +
      'points to resume at.',
  });
}

/** What is kept per row of a slot fits one typed array, and its number a 32-bit integer. */
const mostRows = 2 ** 28;

function checkRows({ maxTokens, sets }: Layout): void {
  const maxRows = Math.max(...sets.map((set) => set.maxRows));
  if (maxRows <= mostRows) return;
  throw createError('KV_INVALID_SHAPE', {
    option: 'maxTokens', value: maxTokens,
    problem: `makes ${formatNumber(maxRows)} rows of a slot; there can be ${formatNumber(mostRows)}`,
    hint: 'Lower it, or use larger `pageBytes`.',
  });
}

/** With less than a row no token could ever be computed. */
function checkBudget(layout: Layout, pool: PagePool, isOwn: boolean): void {
  const rowPages = layout.sets.reduce((pages, set) => pages + set.pagesFor(1), 0);
  if (pool.counts().budgetPages >= rowPages) return;
  const rowBytes = formatNumber(rowPages * layout.pageBytes);
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'KvCache', option: isOwn ? 'memoryBudgetBytes' : 'pool',
    expected: isOwn ? `at least ${rowBytes}` : `a PagePool with a budget of at least ${rowBytes} bytes`,
    received: pool.memoryBudgetBytes,
    hint: `One row of this cache has ${formatCount('page', rowPages)} of ${formatNumber(layout.pageBytes)} bytes.`,
  });
}

/** The same for the eviction policy's factory, and for all methods of what it makes. */
function guardedEviction(make: EvictionPolicyFactory, guard: PolicyGuard): EvictionPolicyFactory {
  const name = 'prefixCache.policy';
  return guard.wrap(name, (context) => {
    const policy = make(context);
    if (typeof policy !== 'object' || policy === null) return policy;
    const wrapped = Object.create(policy) as EvictionPolicy;
    for (const method of [
      'add', 'remove', 'split', 'victim', 'victims', 'withholds', 'withholdsForGood', 'lastingLevel', 'isWorthRoom',
      'floorTokens', 'observe',
    ] as const) {
      const decide = policy[method] as ((...parameters: never[]) => unknown) | undefined;
      if (typeof decide === 'function') Object.assign(wrapped, { [method]: guard.wrap(name, decide.bind(policy)) });
    }
    return wrapped;
  });
}
