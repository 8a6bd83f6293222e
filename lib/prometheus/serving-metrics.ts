// registerServingMetrics: an online scheduler as Prometheus metrics: its queue, what runs, tokens, preemptions, and how
// long requests and passes took.

import { createRequire } from 'node:module';

import { createError } from '../base/errors.js';
import { callable, instanceOf } from '../base/options.js';
import { OnlineScheduler } from '../index.js';
import { MetricSet, metricsOf, type MetricDefinition } from './metric-set.js';
import { loadClient, readMetricsOptions, type MetricsOptions, type MetricsRegister } from './metrics-options.js';

const { gauge, gauges, counter, counters, histogram, histograms } = metricsOf<OnlineScheduler>();

const servingMetrics: readonly MetricDefinition<OnlineScheduler>[] = [
  gauges(
    'requests', 'state', 'Requests that have not ended: with a slot, or without one.',
    ({ runningRequests: running, waitingRequests: waiting }) => ({ running, waiting })),
  gauge('waiting_limit', 'Requests that may wait.', ({ maxWaiting }) => maxWaiting),
  counters('requests_total', 'outcome', 'Requests that ended: answered, or with an error (aborted, too late, too large, an engine that failed).', ({
    totals,
  }) => ({
    completed: totals.completedRequests, failed: totals.failedRequests,
  })),
  counter('prompt_tokens_total', 'Prompt tokens of admitted requests.', ({ totals }) => totals.promptTokens),
  counter('cached_tokens_total', 'Of these, tokens that were cached.', ({ totals }) => totals.cachedTokens),
  counter('generated_tokens_total', 'Tokens of answers.', ({ totals }) => totals.generatedTokens),
  counter(
    'recomputed_tokens_total', 'Tokens computed again after preemptions.', ({ totals }) => totals.recomputedTokens),
  counter(
    'skipped_prefills_total', 'Prompts that were cached whole, with their last logits.',
    ({ totals }) => totals.skippedPrefills),
  counter('preemptions_total', 'Times that a running request lost its slot.', ({ totals }) => totals.preemptions),
  counter('bad_logits_total', 'Times that the logits of a request were not numbers.', ({ totals }) => totals.badLogits),
  counter('recovered_requests_total', 'Requests whose logits were numbers when they were computed once more, without the cached text they began with.', ({ totals }) => totals.recoveredRequests),
  counter('steps_total', 'Rounds of the batching loop.', ({ totals }) => totals.steps),
  histogram('queue_wait_seconds', 'From submission to the first slot.', ({ times }) => times.wait),
  histogram('time_to_first_token_seconds', 'From submission to the first token.', ({ times }) => times.firstToken),
  histograms(
    'time_to_first_token_by_source_seconds', 'source',
    'The same, by what most of the prompt came from: computed, device, or a tier.',
    ({ times }) => Object.fromEntries(times.firstTokenBy)),
  histogram(
    'time_between_tokens_seconds', 'From one token of an answer to the next.', ({ times }) => times.betweenTokens),
  histogram('request_seconds', 'From submission to the end of an answer.', ({ times }) => times.total),
  histograms('pass_seconds', 'call', 'Calls of the engine.', ({ times: { prefill, decode } }) => ({ prefill, decode })),
].map((definition) => ({ ...definition, name: `serving_${definition.name}` }));

const sets = new WeakMap<MetricsRegister, Map<string, MetricSet<OnlineScheduler, OnlineScheduler>>>();

/**
 * Registers the metrics of a scheduler, with the options of `registerMetrics`. Throws KV_CLOSED, KV_DEPENDENCY_MISSING
 * when prom-client is not installed, KV_INVALID_OPTION when another scheduler of that registry and prefix has the same
 * labels, or other label names. Returns what removes it again; the next scrape removes a closed scheduler by itself.
 * @param load Loads prom-client; for tests.
 */
export function registerServingMetrics(
  scheduler: OnlineScheduler, options: MetricsOptions = {}, load: (name: string) => unknown = createRequire(__filename),
): () => void {
  const owner = 'registerServingMetrics';
  instanceOf(
    { name: 'OnlineScheduler', isInstance: (value): value is OnlineScheduler => OnlineScheduler.isInstance(value) },
    'an OnlineScheduler')(
    scheduler, { owner, option: 'scheduler' });
  if (scheduler.isClosed) {
    throw createError('KV_CLOSED', { operation: 'register its metrics', owner: 'OnlineScheduler' });
  }
  const { register, prefix, labels } =
    readMetricsOptions(owner, options, servingMetrics.flatMap(({ labels }) => labels));
  callable()(load, { owner, option: 'load' });
  const client = loadClient(load);
  const registry = register ?? client.register;
  const ofRegister = sets.get(registry) ?? new Map<string, MetricSet<OnlineScheduler, OnlineScheduler>>();
  sets.set(registry, ofRegister);
  const set = ofRegister.get(prefix) ?? new MetricSet<OnlineScheduler, OnlineScheduler>({
    owner, definitions: servingMetrics, isClosed: ({ isClosed }) => isClosed, sample: (source) => source,
    client, registry, prefix, labelNames: Object.keys(labels), onEmpty: () => ofRegister.delete(prefix),
  });
  const leave = set.add({ source: scheduler, labels });
  ofRegister.set(prefix, set);
  return leave;
}
