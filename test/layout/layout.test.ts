import test, { type ExecutionContext } from 'ava';

import { byteOffset, choosePageBytes, computeLayout, layoutKinds, type Layout, type LayoutKind, type LayoutOptions } from '#internal/layout/layout.js';
import { dtypes } from '#internal/base/dtypes.js';
import type { ModelShape } from '#internal/layout/model-shape.js';
import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const KiB = 1024;
const MiB = 1024 * KiB;
const yi34b: ModelShape = { layers: 60, kvHeads: 8, headDim: 128, dtype: 'float16' };
const yi34bTp2: ModelShape = { ...yi34b, parallel: { tensor: 2 } };
const yi6b: ModelShape = { layers: 32, kvHeads: 4, headDim: 128, dtype: 'float16' };
const llama3: ModelShape = { layers: 32, kvHeads: 8, headDim: 128, dtype: 'float16' };

function layoutOf(model: ModelShape, options: Partial<LayoutOptions> = {}): Layout {
  return computeLayout({ layout: 'per-layer', slots: 500, maxTokens: 204_800, pageBytes: 2 * MiB, ...options, model });
}

const unusedBytes = (layout: Layout, tokens: number): number =>
  layout.pagesFor(layout.rowsFor(tokens)) * layout.pageBytes - layout.usedBytes(tokens);

test('Yi-34B TP-2 with 500 slots of 204,800 tokens reserves 12.6 TB', (t) => {
  const layout = layoutOf(yi34bTp2);
  t.is(layout.reservations.length, 120);
  t.deepEqual(layout.reservations[0], {
    tokenBytes: 1024, slotBytes: 209_715_200, rowPages: 1, slotStrideBytes: 209_715_200, bytes: 104_857_600_000,
  });
  t.is(layout.reservations[0]!.slotStrideBytes / layout.pageBytes, 100);
  t.is(layout.virtualBytes, 12_582_912_000_000);
});

test('a slot that is no multiple of a page is rounded up to one', (t) => {
  const layout = layoutOf(yi34bTp2, { maxTokens: 200_000 });
  t.is(layout.reservations[0]!.slotBytes, 204_800_000);
  t.is(layout.reservations[0]!.slotStrideBytes, 205_520_896);
  t.is(layout.reservations[0]!.bytes, 102_760_448_000);
  t.is(layout.virtualBytes, 12_331_253_760_000);
});

test('a slot smaller than a page starts on a page of its own, and the strides say so', (t) => {
  const layout = layoutOf(llama3, { maxTokens: 512, slots: 4 });
  t.is(layout.reservations[0]!.slotBytes, MiB);
  t.is(layout.reservations[0]!.slotStrideBytes, 2 * MiB);
  t.is(byteOffset(layout.tensors[0]!, 1, 0), 2_097_152);
  t.deepEqual(layout.tensors[0]!.strides, { slotBytes: 2 * MiB, tokenBytes: 2048, headBytes: 256, elementBytes: 2 });
  t.deepEqual(layout.tensors[0]!.shape, [4, 512, 8, 128]);
});

test('a row has as many tokens as fit a page of its size', (t) => {
  const perRow = (model: ModelShape): number[] =>
    [64 * KiB, 128 * KiB, 256 * KiB, 2 * MiB].map((pageBytes) => layoutOf(model, { pageBytes }).tokensPerRow);
  t.deepEqual(perRow(yi6b), [64, 128, 256, 2048]);
  t.deepEqual(perRow(llama3), [32, 64, 128, 1024]);
  t.deepEqual(perRow(yi34bTp2), [64, 128, 256, 2048]);
});

test('a row has fewer tokens where tensors share a reservation', (t) => {
  const tokensPerRow = { 'per-layer': 1024, 'sliced': 32, 'fused': 16 } satisfies Record<LayoutKind, number>;
  const reservations = { 'per-layer': 64, 'sliced': 2, 'fused': 1 } satisfies Record<LayoutKind, number>;
  for (const layout of layoutKinds) t.like(layoutOf(llama3, { layout }), { tokensPerRow: tokensPerRow[layout], reservations: { length: reservations[layout] } });
  t.is(layoutOf(yi6b, { layout: 'sliced' }).tokensPerRow, 64);
  t.is(layoutOf(yi34bTp2, { layout: 'sliced' }).tokensPerRow.toFixed(2), '34.13');
});

test('a length needs the rows that its bytes fill', (t) => {
  const layout = layoutOf(yi34bTp2);
  const lengths = [0, 1, 2_048, 2_049, 33_000, 204_800];
  t.deepEqual(lengths.map((tokens) => layout.rowsFor(tokens)), [0, 1, 1, 2, 17, 100]);
  t.is(layout.maxRows, 100);
  t.throws(() => layout.rowsFor(204_801), { instanceOf: RangeError, code: 'KV_LENGTH_OUT_OF_RANGE' });
});

test('the next growth after 33,000 tokens is at 34,817', (t) => {
  const layout = layoutOf(yi34bTp2);
  t.is(layout.tokensIn(17), 34_816);
  t.is(layout.rowsFor(33_001), 17);
  t.is(layout.rowsFor(34_817), 18);
  t.is(layout.pagesFor(2) - layout.pagesFor(1), 120);
});

test('33,000 tokens have the pages of their rows, and the rest is unused', (t) => {
  const large = layoutOf(yi34bTp2);
  t.is(large.pagesFor(17), 2_040);
  t.is(large.pagesFor(17) * large.pageBytes, 4_278_190_080);
  t.is(unusedBytes(large, 33_000), 223_150_080);
  const small = layoutOf(yi34bTp2, { pageBytes: 64 * KiB });
  t.is(small.pagesFor(small.rowsFor(33_000)), 61_920);
  t.is(unusedBytes(small, 33_000), 2_949_120);
});

test('a page may end inside a token: 33,000 sliced tokens are 967 pages by bytes, not 971 by whole tokens', (t) => {
  const layout = layoutOf(yi34bTp2, { layout: 'sliced' });
  t.is(layout.rowsFor(33_000), 967);
  t.is(layout.pagesFor(967), 1_934);
  t.is(unusedBytes(layout, 33_000), 851_968);
});

test('a token may be larger than a page', (t) => {
  const layout = layoutOf(yi34b, { layout: 'sliced', pageBytes: 64 * KiB });
  t.is(layout.reservations[0]!.tokenBytes, 122_880);
  t.is(layout.pagesIn(0, layout.rowsFor(1)), 2);
  t.is(layout.pagesIn(0, layout.rowsFor(8)), 15);
  t.is(layout.tokensIn(1), 0);
  t.is(layout.tokensIn(2), 1);
});

/** What `auto` chooses, and why. */
function chosen(t: ExecutionContext, model: ModelShape, options: Partial<LayoutOptions> = {}): string {
  const { kind, sets: [set] } = layoutOf(model, { layout: 'auto', ...options });
  t.is(set!.layout, kind);
  return `${kind}: ${set!.layoutReason}`;
}

test('auto: per-layer while its rows have at most a quarter of 2,048 tokens, or of maxTokens; else fused', (t) => {
  const model = (kvHeads: number): ModelShape => ({ ...llama3, kvHeads });
  t.is(chosen(t, model(16)), 'per-layer: short-rows'); // 512 tokens
  t.is(chosen(t, model(15)), 'fused: short-rows');
  t.is(chosen(t, llama3), 'fused: short-rows');
  t.is(chosen(t, llama3, { pageBytes: MiB }), 'per-layer: short-rows');
  t.is(chosen(t, llama3, { pageBytes: MiB, maxTokens: 2_048 }), 'per-layer: short-rows');
  t.is(chosen(t, llama3, { pageBytes: MiB, maxTokens: 2_047 }), 'fused: short-rows');
  const small: ModelShape = { layers: 4, kvHeads: 2, headDim: 32, dtype: 'float16' }; // 1,024 bytes a token
  t.is(chosen(t, small), 'fused: smallest');
  t.is(chosen(t, small, { pageBytes: 512 * KiB }), 'fused: short-rows');
  t.is(chosen(t, small, { pageBytes: 64 * KiB }), 'per-layer: short-rows');
});

test('auto: the first rows of all slots take at most a quarter of the budget', (t) => {
  const model: ModelShape = { ...llama3, kvHeads: 16 }; // rows of 64, 2 and 1 pages of 2 MiB
  const within = (memoryBudgetBytes: number): string => chosen(t, model, { slots: 4, memoryBudgetBytes });
  t.is(within(2_048 * MiB), 'per-layer: short-rows');
  t.is(within(2_048 * MiB - 1), 'fused: budget');
  t.is(within(32 * MiB), 'fused: budget');
  t.is(within(32 * MiB - 1), 'fused: smallest');
  t.is(chosen(t, llama3, { slots: 4, memoryBudgetBytes: 64 * MiB }), 'fused: short-rows', 'rows of `per-layer` are too long anyway');
});

test('auto on a GPU: per-layer unless a prompt would leave more than half of its row unused, whatever the budget', (t) => {
  const on = (driverKind: 'cuda' | 'mock', kvHeads: number, options: Partial<LayoutOptions> = {}): string =>
    chosen(t, { ...llama3, kvHeads }, { driverKind, memoryBudgetBytes: MiB, ...options });
  for (const kind of ['cuda', 'mock'] as const) {
    t.is(on(kind, 8), 'per-layer: short-rows'); // 1,024 tokens
    t.is(on(kind, 2), 'per-layer: short-rows'); // 4,096 tokens: half of a row holds a prompt
    t.is(on(kind, 1), 'fused: short-rows');
    t.is(on(kind, 8, { maxTokens: 512 }), 'per-layer: short-rows');
    t.is(on(kind, 8, { maxTokens: 511 }), 'fused: short-rows');
    t.is(on(kind, 1, { maxTokens: 15 }), 'fused: smallest');
  }
  t.is(chosen(t, llama3, { driverKind: 'host' }), chosen(t, llama3));
});

test('auto on a CPU takes smaller pages where no layout has rows short and small enough, at most 16,384 of them', (t) => {
  const small: ModelShape = { layers: 4, kvHeads: 2, headDim: 32, dtype: 'float16' }; // 1,024 bytes a token
  const pages = (model: ModelShape, options: Partial<LayoutOptions> = {}, hasHugePages = false): number =>
    choosePageBytes(
      { model, layout: 'auto', slots: 16, maxTokens: 4_096, ...options },
      { info: { granularityBytes: 64 * KiB, defaultPageBytes: 2 * MiB }, hasHugePages },
    );
  t.is(pages(llama3), 2 * MiB);
  t.is(pages(llama3, { slots: 4, memoryBudgetBytes: 32 * MiB }), 2 * MiB);
  t.is(pages(llama3, { slots: 5, memoryBudgetBytes: 32 * MiB }), 2 * MiB, 'rows of `fused` have 16 tokens already');
  t.is(pages({ ...llama3, layers: 8 }, { slots: 5, memoryBudgetBytes: 32 * MiB }), 512 * KiB);
  t.is(pages(small), 64 * KiB);
  t.is(pages(small, { memoryBudgetBytes: 1_024 * MiB }), 64 * KiB);
  t.is(pages(small, { memoryBudgetBytes: 1_024 * MiB + 1 }), 128 * KiB);
  t.is(pages(small, { memoryBudgetBytes: 2 ** 50 }), 2 * MiB);
  t.is(pages(small, {}, true), 2 * MiB);
  t.is(pages(small, { layout: 'per-layer' }), 2 * MiB);
  t.is(pages(small, { driverKind: 'cuda' }), 2 * MiB);
  t.is(pages(small, { driverKind: 'mock' }), 2 * MiB);
});

test('auto: where layers differ, a row ends at the same token in all', (t) => {
  const differing: ModelShape = { layers: 2, kvHeads: 16, headDim: 128, dtype: 'float16', layerShapes: [{}, { headDim: 96 }] };
  t.like(layoutOf(differing), { tokensPerRow: 2_048, pagesPerRow: 2 * (4 + 3) });
  t.is(chosen(t, differing), 'fused: short-rows');
});

test('auto is a layout by its name, and a full set may have its own', (t) => {
  const { sets: [auto], ...rest } = layoutOf(llama3, { layout: 'auto' });
  const { sets: [named], ...same } = layoutOf(llama3, { layout: 'fused' });
  t.is(JSON.stringify(rest), JSON.stringify(same));
  t.is(JSON.stringify({ ...auto, layoutReason: 'given' }), JSON.stringify(named));
  const withSet = (layout: LayoutKind | 'auto'): ModelShape => ({
    ...llama3, layerSets: [{ kind: 'full', layers: Array.from({ length: 32 }, (_, layer) => layer), layout }],
  });
  t.is(chosen(t, withSet('sliced')), 'sliced: given');
  t.is(chosen(t, withSet('auto'), { layout: 'per-layer' }), 'fused: short-rows');
});

test('strides and offsets follow the axes of each layout', (t) => {
  const model: ModelShape = { layers: 3, kvHeads: 2, headDim: 4, dtype: 'float32' }; // 32 bytes per tensor and token
  const places = (layout: LayoutOptions['layout']): number[][] =>
    layoutOf(model, { layout, slots: 2, maxTokens: 100, pageBytes: 4096 })
      .tensors.map(({ reservation, offsetBytes, strides }) => [reservation, offsetBytes, strides.tokenBytes]);
  t.deepEqual(places('per-layer'), [[0, 0, 32], [1, 0, 32], [2, 0, 32], [3, 0, 32], [4, 0, 32], [5, 0, 32]]);
  t.deepEqual(places('sliced'), [[0, 0, 96], [1, 0, 96], [0, 32, 96], [1, 32, 96], [0, 64, 96], [1, 64, 96]]);
  t.deepEqual(places('fused'), [[0, 0, 192], [0, 32, 192], [0, 64, 192], [0, 96, 192], [0, 128, 192], [0, 160, 192]]);
});

test('MLA has one reservation per layer, and one when sliced', (t) => {
  const model: ModelShape = { layers: 61, attention: 'latent', latentDim: 576, dtype: 'bfloat16' };
  const reservations = { 'per-layer': 61, 'sliced': 1, 'fused': 1 } satisfies Record<LayoutKind, number>;
  for (const layout of layoutKinds) t.is(layoutOf(model, { layout }).reservations.length, reservations[layout]);
  t.is(layoutOf(model).reservations[0]!.tokenBytes, 1152);
  t.is(layoutOf(model, { layout: 'fused' }).reservations[0]!.tokenBytes, 61 * 1152);
});

test('a replicated MQA head costs every worker the same', (t) => {
  const falcon: ModelShape = { layers: 32, kvHeads: 1, headDim: 64, dtype: 'bfloat16' };
  t.is(layoutOf(falcon).virtualBytes, layoutOf({ ...falcon, parallel: { tensor: 4 } }).virtualBytes);
});

test('reservations with tokens of different sizes cover the same tokens in each row', (t) => {
  const model: ModelShape = { layers: 2, kvHeads: 4, headDim: 128, dtype: 'float16', layerShapes: [{}, { kvHeads: 1 }] };
  const layout = layoutOf(model, { maxTokens: 10_000, pageBytes: 64 * KiB }); // 1,024 and 256 bytes per token
  t.is(layout.commonTokenBytes, 256);
  t.is(layout.tokensPerRow, 256);
  t.deepEqual([0, 1, 2].map((rows) => layout.pagesIn(0, rows)), [0, 4, 8]);
  t.deepEqual([0, 1, 2].map((rows) => layout.pagesIn(2, rows)), [0, 1, 2]);
  t.is(layout.pagesPerRow, 2 * 4 + 2 * 1);
});

test('a row is never more than a slot', (t) => {
  const model: ModelShape = { layers: 1, kvHeads: 1, headDim: 4, valueHeadDim: 3, dtype: 'int8' };
  const layout = layoutOf(model, { slots: 2, maxTokens: 1_100, pageBytes: 4_000 }); // 4,400 and 3,300 bytes per slot
  t.is(layout.maxRows, 1);
  t.deepEqual([layout.pagesIn(0, 1), layout.pagesIn(1, 1)], [2, 1]);
  t.is(layout.reservations[1]!.slotStrideBytes, 4_000);
});

test('sizes beyond exact integers are refused, with the numbers', (t) => {
  t.throws(() => layoutOf(yi34b, { slots: 1_000_000, maxTokens: 100_000_000 }), { code: 'KV_OUT_OF_ADDRESS_SPACE' });
});

slow('a model of very many layers')('a model of very many layers has a layout', (t) => {
  t.is(layoutOf({ layers: 2 ** 16, kvHeads: 1, headDim: 1, dtype: 'int8' }, { slots: 1, maxTokens: 1 }).reservations.length, 2 ** 17);
});

test('in any shape rows lose no token, never shrink, and no two tokens share a byte', (t) => {
  const seed = seedOf('layout');
  t.log(`VKV_TEST_SEED=${seed}`);
  const random = new Random(seed);
  for (let round = 0; round < 400; round += 1) checkRandomLayout(t, random, `round ${round}`);
});

function checkRandomLayout(t: { true(value: boolean, message?: string): boolean }, random: Random, round: string): void {
  const layout = randomLayout(random);
  const { maxTokens, pageBytes, maxRows, reservations, tensors, slots } = layout;
  const holds = (truth: boolean, what: string): void => {
    if (!truth) t.true(false, `${what}, ${round}: ${JSON.stringify(layout)}`);
  };

  for (const [index, { tokenBytes, slotBytes, rowPages, slotStrideBytes, bytes }] of reservations.entries()) {
    const spareBytes = slotStrideBytes - slotBytes;
    const rowBytes = rowPages * pageBytes;
    holds(slotStrideBytes % rowBytes === 0 && spareBytes >= 0 && spareBytes < rowBytes, 'the stride is rounded up');
    holds(maxRows === 1 || rowPages * layout.commonTokenBytes === tokenBytes, 'a row ends at the same token everywhere');
    holds(bytes === slots * slotStrideBytes && slotBytes === maxTokens * tokenBytes, 'a reservation holds its slots');
    holds(layout.pagesIn(index, maxRows) === slotStrideBytes / pageBytes, 'a full slot is mapped to its end');
  }
  for (const tokens of [0, 1, maxTokens - 1, maxTokens, random.integer(maxTokens + 1), random.integer(maxTokens + 1)]) {
    const rows = layout.rowsFor(tokens);
    holds(layout.tokensIn(rows) >= tokens, 'the rows of a length hold it');
    holds(rows === 0 || layout.tokensIn(rows - 1) < tokens, 'one row less does not');
    const mapped = reservations.map((_, index) => layout.pagesIn(index, rows) * pageBytes);
    holds(tensors.every((tensor) => tokens === 0 || lastByte(tensor, 0, tokens - 1) <= mapped[tensor.reservation]!),
      'the last byte of the last token is mapped in every reservation');
    holds(layout.pagesFor(rows) * pageBytes >= layout.usedBytes(tokens), 'pages cover what is used');
  }
  for (let rows = 0, before = 0; rows <= Math.min(maxRows, 50); rows += 1) {
    const pages = layout.pagesFor(rows);
    holds(pages >= before && pages <= rows * layout.pagesPerRow, 'pages grow with rows, by a row at most');
    holds(pages === reservations.reduce((total, _, index) => total + layout.pagesIn(index, rows), 0), 'pages add up');
    before = pages;
  }
  for (const tensor of tensors) {
    const end = lastByte(tensor, slots - 1, maxTokens - 1);
    holds(end <= reservations[tensor.reservation]!.bytes, 'the last token of the last slot is inside the reservation');
    holds(slots === 1 || lastByte(tensor, 0, maxTokens - 1) <= byteOffset(tensor, 1, 0) - tensor.offsetBytes,
      'a slot ends before the next one starts');
  }
  const tokenRanges = reservations.map((_, index) => tensors.filter(({ reservation }) => reservation === index));
  for (const [index, inOne] of tokenRanges.entries()) {
    const ends = inOne.map(({ offsetBytes, tokenBytes }) => offsetBytes + tokenBytes);
    holds(inOne.every(({ offsetBytes }, place) => offsetBytes === (place === 0 ? 0 : ends[place - 1])) &&
      ends.at(-1) === reservations[index]!.tokenBytes, 'the tensors of a token follow each other without gap or overlap');
  }
  t.true(true);
}

function lastByte(tensor: Layout['tensors'][number], slot: number, token: number): number {
  const [, , heads, dim] = tensor.shape;
  const { headBytes, elementBytes } = tensor.strides;
  return byteOffset(tensor, slot, token) + (heads - 1) * headBytes + (dim - 1) * elementBytes + elementBytes;
}

function randomLayout(random: Random): Layout {
  const among = <T>(choices: readonly T[]): T => choices[random.integer(choices.length)]!;
  const upTo = (max: number): number => 1 + random.integer(max);
  const layers = upTo(9);
  const kvHeads = among([1, 2, 3, 4, 6, 8, 12]);
  const base: ModelShape = {
    layers, kvHeads, headDim: among([1, 3, 64, 80, 96, 128, 257]), dtype: among(dtypes),
    parallel: { tensor: among([1, kvHeads]), pipeline: upTo(layers) },
  };
  const variants: ModelShape[] = [
    base,
    { ...base, valueHeadDim: upTo(200) },
    { ...base, attention: 'latent', latentDim: upTo(600) },
    { ...base, layerShapes: Array.from({ length: layers }, () => (random.chance(0.5) ? {} : { headDim: upTo(300) })) },
  ];
  return computeLayout({
    model: among(variants), layout: among(layoutKinds), slots: upTo(40), maxTokens: upTo(30_000),
    pageBytes: among([1, 17, 1_000, 4 * KiB, 64 * KiB, 96 * KiB, 2 * MiB]),
  });
}
