// Opens the tiers below a cache's device: builds their parts in the order in which they depend on each other.

import { createHash } from 'node:crypto';

import { createError } from '../base/errors.js';
import type { SlotLeases } from '../cache/admission.js';
import type { CachedRows } from '../cache/cached-rows.js';
import type { RowSharing } from '../cache/row-sharing.js';
import type { SlotMemory } from '../cache/slots.js';
import type { Steps } from '../cache/steps.js';
import type { ModelShape } from '../layout/model-shape.js';
import type { PromptEncoder } from '../prefix/prompt-encoder.js';
import { BlockKeys } from './block-record.js';
import { CacheTiers } from './cache-tiers.js';
import { Demotions, type FinishedTexts } from './demotions.js';
import { mostPromotions, Promotions } from './promotions.js';
import { ChoiceFollowers, RaisedBlocks, RaisedTexts } from './selection/choice-followers.js';
import { ImportanceMeans } from './selection/importance-means.js';
import { probesOf, type ReadImportance } from './selection/probes.js';
import { Reordering } from './selection/reordering.js';
import { Selections } from './selection/selections.js';
import { TierSet } from './tier-set.js';
import type { Tier } from './tier.js';
import { BlockCopies, Transfers } from './transfers.js';

/** Texts that are held for requests which wait for a slot, at most. */
const mostHeld = 3;
/** Slots beside those of users: one for what goes down, the others for what comes up, and for what is held. */
export const transferSlots = mostPromotions + mostHeld + 1;

/** What a cache with tiers was given. */
export interface CacheTiersRules {
  readonly tiers: readonly Tier[];
  readonly modelId: string | undefined;
  readonly blockTokens: number | undefined;
  readonly importance: ReadImportance | undefined;
  /** Requests that selected between two runs of reordering; 0: none by itself. */
  readonly reorderAfter: number;
  readonly tierCloseTimeoutMs: number;
  readonly model: ModelShape;
  /** A clock in milliseconds that neither throws nor calls the cache. */
  readonly now: () => number;
}

/** The parts of the cache that its tiers work on. */
export interface CacheBesideTiers {
  readonly memory: SlotMemory;
  readonly leases: SlotLeases;
  readonly steps: Steps;
  readonly sharing: RowSharing;
  readonly cached: CachedRows;
  readonly finished: FinishedTexts;
  readonly encoder: PromptEncoder;
}

export function openTiers(
  { memory, leases, steps, sharing, cached, finished, encoder }: CacheBesideTiers, rules: CacheTiersRules,
): CacheTiers {
  const { background, layout: { tensors } } = memory;
  const probes = probesOf(tensors, rules.importance);
  const tensorTokenBytes = tensors.map(({ tokenBytes }) => tokenBytes);
  const stripeTokenBytes = [...tensorTokenBytes, ...probes.map(({ tokenBytes }) => tokenBytes)];
  const keys = new BlockKeys(tensors, rules.blockTokens ?? defaultBlockTokens(tensorTokenBytes));
  const means = new ImportanceMeans();
  const report = (error: unknown): void => { background.report(error); };
  const set = new TierSet({
    tiers: rules.tiers, keys, namespace: namespaceOf(rules, keys), stripeTokenBytes, names: encoder,
    importantTokens: ({ key, tokens }) => means.sumOf(key) ?? tokens.length,
    lastingLevel: (level) => cached.index.lastingLevel(level), report,
  });
  const transfers =
    new Transfers(memory, leases, steps, cached.registry, new BlockCopies(memory.native, tensors.length, probes));
  const demotions = new Demotions(memory, cached.index, set, transfers, finished);
  const promotions = new Promotions(cached, set, transfers, rules.now);
  const followers = new ChoiceFollowers(
    means, new RaisedBlocks(set, report), new RaisedTexts(memory, cached, promotions, means),
    new Reordering(set, means, tensorTokenBytes, { after: rules.reorderAfter, report }), report,
  );
  const selections = new Selections({ memory, steps, sharing, tiers: set, promotions, followers, probes });
  return new CacheTiers(
    { set, transfers, demotions, promotions, followers, selections }, rules.tierCloseTimeoutMs, report);
}

/**
 * About the bytes of a block: few enough that one is soon loaded, and enough for a disk and a network to be at their
 * best.
 */
const blockBytes = 4 * 1024 * 1024;

/** A power of two, 16 … 256, by the model alone, so that processes with other layouts find the same blocks. */
function defaultBlockTokens(tensorTokenBytes: readonly number[]): number {
  const tokens = blockBytes / tensorTokenBytes.reduce((sum, bytes) => sum + bytes, 0);
  return Math.min(256, Math.max(16, 2 ** Math.floor(Math.log2(tokens))));
}

/**
 * Of the model's name, and of its tensors on this worker: which layers they are of, how many heads each has, and whose
 * share of them; and of the probe heads, which are in every block.
 */
function namespaceOf({ tiers, modelId: given, model, importance }: CacheTiersRules, keys: BlockKeys): string {
  const modelId = given ?? model.identity;
  const { tensor = 1, tensorRank } = model.parallel ?? {};
  const hasShare = tensor > 1 && model.attention !== 'latent'; // every worker has a latent tensor whole
  if (hasShare && tensorRank === undefined && tiers.some(({ isLasting }) => isLasting)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'KvCache', option: 'model.parallel.tensorRank', expected: `an integer, 0 … ${tensor - 1}`,
      received: undefined,
      hint: `The ${tensor} workers have tensors of the same shape: by it the tiers tell whose blocks they have.`,
    });
  }
  if (modelId === undefined && tiers.some(({ isLasting }) => isLasting)) {
    throw createError('KV_INVALID_OPTION', {
      reason: 'type', owner: 'KvCache', option: 'prefixCache.modelId', expected: 'a string', received: undefined,
      hint: 'Blocks in tiers that outlive the process are found by it: name the weights and their revision, or open the cache with `LlamaModel.shape()`.',
    });
  }
  const share = hasShare ? [tensor, tensorRank ?? 0] : [];
  const probes = importance === undefined ? [] : [{ probeHeads: importance.probeHeads }];
  return createHash('sha256').update(
    JSON.stringify(['virtual-kv tier', 1, modelId ?? '', keys.root({}), ...share, ...probes])).digest('hex');
}
