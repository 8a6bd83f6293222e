// The metrics of tiers below a cache's device. A cache without tiers has none of their series.

import type { TierMetrics, TiersMetrics, TimeHistogram } from '../index.js';
import type { MetricDefinition } from './metric-set.js';

interface TieredSample {
  readonly tiers: TiersMetrics | undefined;
}

type Definition = MetricDefinition<TieredSample>;
type Read = (tier: TierMetrics) => number | undefined;

/** One value for each tier that has one. */
function each(kind: 'gauge' | 'counter') {
  return (name: string, help: string, read: Read): Definition => ({
    name, help, kind, labels: ['tier'],
    read: ({ tiers }) => (tiers?.tiers ?? []).flatMap((tier) => {
      const value = read(tier);
      return value === undefined ? [] : [[value, tier.name] as const];
    }),
  });
}

/** Several for each tier, by a second label. */
function eachBy(kind: 'gauge' | 'counter') {
  return (
    name: string, label: string, help: string, read: (tier: TierMetrics) => Readonly<Record<string, number>>,
  ): Definition => ({
    name, help, kind, labels: ['tier', label],
    read: ({ tiers }) => (tiers?.tiers ?? []).flatMap((
      tier,
    ) => Object.entries(read(tier)).map(([key, value]) => [value, tier.name, key] as const)),
  });
}

function times(name: string, help: string, read: (tier: TierMetrics) => TimeHistogram): Definition {
  return {
    name, help, kind: 'histogram', labels: ['tier'], read: () => [],
    times: ({ tiers }) => (tiers?.tiers ?? []).map((tier) => [read(tier), tier.name] as const),
  };
}

function all(
  kind: 'gauge' | 'counter', name: string, help: string, read: (tiers: TiersMetrics) => number | undefined,
): Definition {
  return {
    name, help, kind, labels: [],
    read: ({ tiers }) => {
      const value = tiers === undefined ? undefined : read(tiers);
      return value === undefined ? [] : [[value]];
    },
  };
}

/** A number among a tier's own statistics, of tiers that have it; none is below 0. */
function own(name: string): Read {
  return ({ own: statistics }) => {
    const value = statistics?.[name];
    return typeof value === 'number' && value >= 0 ? value : undefined;
  };
}

const breakerStates = ['closed', 'half-open', 'open'] as const;
const lanes = ['lookups', 'reads', 'writes'] as const;

/** By lane: 0 closed, 1 half-open, 2 open. */
function breakersOf({ own: statistics }: TierMetrics): Readonly<Record<string, number>> {
  const states =
    lanes.map((lane) => [lane, breakerStates.indexOf(statistics?.[lane] as (typeof breakerStates)[number])] as const);
  return Object.fromEntries(states.filter(([, state]) => state >= 0));
}

const gauge = each('gauge');
const counter = each('counter');
const counters = eachBy('counter');
const states = ['opening', 'open', 'failed', 'closed'] as const;

export const tierMetrics: readonly Definition[] = [
  eachBy('gauge')(
    'tier_state', 'state', 'State of a tier: 1 for the one it is in.',
    ({ state }) => Object.fromEntries(states.map((each) => [each, each === state ? 1 : 0]))),
  gauge('tier_blocks', 'Blocks of a tier that the cache knows.', ({ blocks }) => blocks),
  gauge('tier_bytes', 'Bytes that these take of its capacity.', ({ bytes }) => bytes),
  gauge(
    'tier_capacity_bytes', 'Bytes that it may have, of tiers that do not bound themselves.',
    ({ capacityBytes }) => capacityBytes),
  gauge(
    'tier_latency_seconds', 'Time before the first byte of a load, as measured.',
    ({ latencyMs }) => (latencyMs === undefined ? undefined : latencyMs / 1e3)),
  gauge(
    'tier_bandwidth_bytes', 'Bytes a second of a load from then on, as measured.',
    ({ bytesPerMs }) => (bytesPerMs === undefined ? undefined : bytesPerMs * 1e3)),
  eachBy('gauge')(
    'tier_breaker_state', 'lane', 'Circuit breakers of a tier: 0 closed, 1 half-open, 2 open.', breakersOf),
  gauge(
    'tier_queued_blocks', 'Blocks that wait to be written, of tiers with a queue of their own.', own('queuedBlocks')),
  gauge('tier_queued_bytes', 'Bytes of these.', own('queuedBytes')),
  counter(
    'tier_promoted_tokens_total', 'Tokens that came to the device from a tier.',
    ({ promotedTokens }) => promotedTokens),
  counter(
    'tier_loaded_bytes_total', 'Bytes that a tier gave, of tiers that lend none of their memory.',
    ({ loadedBytes }) => loadedBytes),
  counter('tier_stored_blocks_total', 'Blocks that were stored in a tier.', ({ storedBlocks }) => storedBlocks),
  counter('tier_stored_bytes_total', 'Bytes of these.', ({ storedBytes }) => storedBytes),
  counter(
    'tier_evicted_blocks_total', 'Blocks that went from a tier to make room.', ({ evictedBlocks }) => evictedBlocks),
  counter(
    'tier_damaged_blocks_total', 'Blocks that came back with other bytes than were stored, and were dropped.',
    ({ damagedBlocks }) => damagedBlocks),
  counter(
    'tier_failed_statistics_total', 'Times that a tier did not give its own statistics.',
    ({ failedStatistics }) => failedStatistics),
  counter(
    'tier_dropped_blocks_total', 'Blocks dropped from the queue of a tier because too many waited.',
    own('putsDropped')),
  counter('tier_breaker_opens_total', 'Times that a circuit breaker of a tier opened.', own('breakerOpens')),
  counters('tier_refusals_total', 'reason', 'Blocks that a tier did not take.', ({ refusals }) => refusals),
  counters('tier_misses_total', 'reason', 'Blocks that a tier did not give.', ({ misses }) => misses),
  times(
    'tier_get_seconds', 'How long a tier took to give a block, of tiers that lend none of their memory.',
    ({ getTimes }) => getTimes),
  times('tier_put_seconds', 'How long a tier took to store a block.', ({ putTimes }) => putTimes),
  all(
    'gauge', 'tiers_waiting_texts', 'Finished texts that wait to be stored in tiers.',
    ({ waitingTexts }) => waitingTexts),
  all(
    'gauge', 'tiers_prefill_tokens',
    'Prompt tokens a second that the engine computes, as measured: what loading is compared with.',
    ({ prefillTokensPerMs }) => (prefillTokensPerMs === undefined ? undefined : prefillTokensPerMs * 1e3)),
  all(
    'counter', 'tiers_dropped_texts_total', 'Finished texts of which a tier wanted more than it got.',
    ({ droppedTexts }) => droppedTexts),
  all(
    'counter', 'tiers_interrupted_transfers_total', 'Loads and stores that ended early, since their pages were wanted.',
    ({ interruptedTransfers }) => interruptedTransfers),
  all(
    'counter', 'tiers_selected_sequences_total',
    'Sequences that were given selected tokens of a stored text: their answers are not exact.',
    ({ selections }) => selections.sequences),
  all(
    'counter', 'tiers_lost_selections_total', 'Of these, sequences whose text tiers did not give: it was computed.',
    ({ selections }) => selections.lostSequences),
  all(
    'counter', 'tiers_selection_layers_total', 'Layers whose tokens were selected.',
    ({ selections }) => selections.layers),
  all(
    'counter', 'tiers_selection_fallbacks_total',
    'Of these, layers that got all tokens, since their probe heads did not agree.',
    ({ selections }) => selections.fallBacks),
  all(
    'counter', 'tiers_selection_tokens_total', 'Tokens that there were to select from, summed over layers.',
    ({ selections }) => selections.tokens),
  all(
    'counter', 'tiers_selected_tokens_total', 'Tokens that were loaded of these.',
    ({ selections }) => selections.selectedTokens),
  all(
    'counter', 'tiers_selection_read_bytes_total', 'Bytes that selections read from tiers.',
    ({ selections }) => selections.readBytes),
  all(
    'counter', 'tiers_raised_blocks_total', 'Blocks of which selections read, and that were brought to memory for it.',
    ({ raisedBlocks }) => raisedBlocks),
  all(
    'counter', 'tiers_raised_tokens_total',
    'Tokens of text of which selections read, and that came to the device for what they score there.',
    ({ raisedTokens }) => raisedTokens),
  all(
    'counter', 'tiers_reordered_blocks_total',
    'Blocks that were stored anew in the order in which selections read them.',
    ({ reordering }) => reordering.reorderedBlocks),
  all(
    'counter', 'tiers_refused_reorders_total', 'Blocks that a tier did not store anew.',
    ({ reordering }) => reordering.refusedBlocks),
  {
    name: 'tiers_staging_bytes', kind: 'gauge', labels: ['memory'],
    help: 'Memory that copies between the device and tiers go through; pageable: the driver refused to pin it.',
    read: ({ tiers }) => (tiers?.staging === undefined
      ? []
      : [[tiers.staging.pinnedBytes, 'pinned'], [tiers.staging.pageableBytes, 'pageable']]),
  },
  {
    name: 'tiers_promotions_total', kind: 'counter', labels: ['end'],
    help: 'Promotions that tiers had something for, by how they ended.',
    read: ({ tiers }) => Object.entries(tiers?.promotions ?? {}).map(([end, count]) => [count, end] as const),
  },
  {
    name: 'tiers_prefetches_total', kind: 'counter', labels: ['end'], help: 'The same of hints.',
    read: ({ tiers }) => Object.entries(tiers?.prefetches ?? {}).map(([end, count]) => [count, end] as const),
  },
  {
    name: 'tiers_promotion_seconds', kind: 'histogram', labels: [],
    help: 'How long promotions took that had something to load.', read: () => [],
    times: ({ tiers }) => (tiers === undefined ? [] : [[tiers.promotionTimes]]),
  },
];
