// The summary of a replay as text: what was served, what it cost, and how much memory it took, compared with other ways
// to keep the cache. The terminal and the report lay it out, each in its own way.

import { formatBytes, formatCount, formatNumber } from '../base/format.js';
import { PAGED_BLOCK_TOKENS } from './memory-timeline.js';
import type { TiersResult } from './replay-tiers.js';
import { isAllRefused, isSound, type ReplayResult } from './result.js';

/** One line of the summary. */
export interface Fact {
  readonly name: string;
  readonly value: string;
}

/** A way to keep the cache, and the memory it takes at the peak. */
export interface MemoryBar {
  readonly name: string;
  readonly bytes: number;
  /** What the name means, in a few words. */
  readonly note: string;
}

/** Whether every pattern was right and every page came back, in one sentence. */
export function verdictOf(result: ReplayResult): string {
  const { mismatches, leakedPages, verifiedTokens, verify, interrupted } = result;
  if (!isSound(result)) {
    const faults = [
      mismatches > 0 ? `${formatCount('token', mismatches)} read back wrong` : '',
      leakedPages > 0 ? `${formatCount('page', leakedPages)} leaked` : '',
    ];
    return `Memory is not sound: ${faults.filter((fault) => fault !== '').join(', ')}.`;
  }
  if (isAllRefused(result)) return `Nothing was served: ${refusalText(result)}.`;
  const checked = verify === 'off'
    ? 'nothing was read back, no page leaked'
    : `${formatCount('token', verifiedTokens)} read back, all right, no page leaked`;
  return `${interrupted ? 'Interrupted; until then' : 'Done'}: ${checked}.`;
}

export function factsOf(result: ReplayResult): Fact[] {
  const { completedRequests, refusedRequests, requests, skippedLines, preemptions, stepOverheadUs, cache, driver } =
    result;
  const unfinished = requests - completedRequests - refusedRequests;
  const maps = result.foregroundMaps + result.backgroundMaps;
  const join = (...parts: readonly string[]): string => parts.filter((part) => part !== '').join(' · ');
  const some = (count: number, text: string): string => (count > 0 ? `${formatNumber(count)} ${text}` : '');
  return [
    {
      name: 'Requests',
      value: join(
        `${formatNumber(completedRequests)} completed`, ...refusals(result),
        some(unfinished, 'unfinished'), some(skippedLines, 'broken lines skipped'),
      ),
    },
    {
      name: 'Tokens',
      value: join(
        `${formatNumber(result.promptTokens)} prompt`, some(result.cachedTokens, 'from the cache'),
        `${formatNumber(result.generatedTokens)} generated`,
      ),
    },
    ...(cache.prefixCache === 'off' ? [] : [{
      name: 'Prefix cache',
      value: join(
        `${formatNumber(100 * result.hitRate, 1)} % of the prompt tokens`, some(result.adoptedTokens, 'adopted'),
        some(result.aliasedTokens, 'aliased'), some(result.copiedTokens, 'copied'), poolText(cache.prefixCache),
      ),
    }]),
    ...(result.tiers === null ? [] : tierFacts(result.tiers)),
    {
      name: 'Preemptions',
      value: preemptions === 0
        ? 'none'
        : join(
            formatNumber(preemptions), `${formatNumber(result.recomputedTokens)} tokens computed again`,
            some(result.recoveredTokens, 'found again'),
          ),
    },
    {
      name: 'Steps',
      value: join(formatNumber(result.steps), `${formatNumber(result.steps / result.wallSeconds)} a second`),
    },
    {
      name: 'Overhead of a step',
      value: join(
        `p50 ${formatMicroseconds(stepOverheadUs.p50)}`, `p99 ${formatMicroseconds(stepOverheadUs.p99)}`,
        `max ${formatMicroseconds(stepOverheadUs.max)}`,
      ),
    },
    {
      name: 'Pages mapped',
      value: maps === 0 ? 'none' : join(
        formatNumber(maps), `${formatNumber((100 * result.backgroundMaps) / maps)} % ahead of need`,
        `${formatNumber(result.unmaps)} unmapped`,
      ),
    },
    {
      name: 'Page',
      value: `${formatBytes(cache.pageBytes)}, ${cache.layout}: a row is ${formatBytes(cache.rowBytes)} ` +
        `for ${formatNumber(cache.tokensPerRow, 2)} tokens of ${formatBytes(cache.tokenBytes)}`,
    },
    {
      name: 'Memory budget',
      value: `${formatBytes(cache.memoryBytes)} of ${driver.deviceName} · ${formatBytes(result.peakPoolBytes)} held at most`,
    },
    { name: 'Time', value: formatSeconds(result.wallSeconds) },
  ];
}

function tierFacts({ promptTokensBy, firstTokenMsBy, prefillTokensPerSecond }: TiersResult): Fact[] {
  const total = Math.max(1, Object.values(promptTokensBy).reduce((sum, tokens) => sum + tokens, 0));
  const by = (
    values: Readonly<Record<string, string>>,
  ): string => Object.entries(values).map(([name, value]) => `${value} ${name}`).join(' · ');
  const shares = Object.fromEntries(
    Object.entries(promptTokensBy).map(([name, tokens]) => [name, `${formatNumber((100 * tokens) / total, 1)} %`]));
  const times = Object.fromEntries(
    Object.entries(firstTokenMsBy).map(([name, { p50Ms }]) => [name, formatMicroseconds(1e3 * p50Ms)]));
  return [
    { name: 'Prompts came from', value: by(shares) },
    {
      name: 'First token, median', value: `${by(times)}; computing at ${formatNumber(prefillTokensPerSecond)} tokens/s`,
    },
  ];
}

/** Why requests were refused, with the flag that would admit them. */
function refusals({ tooLongRequests, tooLargeRequests, cache }: ReplayResult): string[] {
  const some =
    (count: number, text: string): string[] => (count > 0 ? [`${formatNumber(count)} refused: ${text}`] : []);
  return [
    ...some(tooLongRequests, `longer than ${formatCount('token', cache.maxTokens)}`),
    ...some(tooLargeRequests, `more than all memory, ${formatBytes(cache.memoryBytes)}`),
  ];
}

function refusalText(result: ReplayResult): string {
  const { tooLongRequests, tooLargeRequests, requests, cache } = result;
  const reasons = [
    ...tooLargeRequests > 0
    ? [`${formatNumber(tooLargeRequests)} larger than all memory (${formatBytes(cache.memoryBytes)} in rows of ` +
      `${formatBytes(cache.rowBytes)}; raise --memory-bytes or lower --page-bytes)`] : [],
    ...tooLongRequests > 0
    ? [`${formatNumber(tooLongRequests)} longer than ${formatCount('token', cache.maxTokens)} (raise --max-tokens)`]
    : [],
  ];
  return `of ${formatCount('request', requests)} ${reasons.join(', ')}`;
}

function poolText({ policy, poolRows }: Exclude<ReplayResult['cache']['prefixCache'], 'off'>): string {
  return `${policy}, ${poolRows === null ? 'as many rows as memory has' : formatCount('row', poolRows)}`;
}

/** From the most memory to the least, unless prefixes are shared. */
export function memoryBarsOf(result: ReplayResult): MemoryBar[] {
  const { maxBatch } = result.cache;
  return [
    {
      name: 'Static reservation', bytes: result.staticBytes,
      note: `${formatCount('slot', maxBatch)} of the longest request's ${formatCount('token', result.longestTokens)}, always`,
    },
    { name: 'virtual-kv', bytes: result.peakPhysicalBytes, note: 'pages mapped under running sequences' },
    {
      name: 'Paged cache', bytes: result.pagedBytesAtPeak,
      note: `blocks of ${PAGED_BLOCK_TOKENS} tokens, needs paged kernels`,
    },
    {
      name: 'Valid tokens', bytes: result.usedBytesAtPeak,
      note: result.cache.prefixCache === 'off' ? 'nothing can take less' : 'without sharing nothing can take less',
    },
  ];
}

/** `3.4 µs`, `1.2 ms`. */
export function formatMicroseconds(us: number): string {
  return us < 1000 ? `${formatNumber(us, us < 100 ? 1 : 0)} µs` : `${formatNumber(us / 1e3, 1)} ms`;
}

/** `8.3 s`, `2 min 5 s`. */
export function formatSeconds(seconds: number): string {
  if (seconds < 60) return `${formatNumber(seconds, 1)} s`;
  return `${formatNumber(Math.floor(seconds / 60))} min ${formatNumber(Math.floor(seconds % 60))} s`;
}
