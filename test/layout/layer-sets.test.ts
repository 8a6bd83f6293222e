import test from 'ava';

import { computeLayout, type LayerSetLayout, type Layout, type LayoutOptions } from '#internal/layout/layout.js';
import type { LayerSetShape } from '#internal/layout/layer-set-shape.js';
import { tensorsOf, type ModelShape } from '#internal/layout/model-shape.js';
import { Random } from '#internal/base/random.js';
import { scaled } from '../runner/tier.js';
import { refuses } from '../helpers/refuses.js';
import { seedOf } from '../helpers/seed.js';

const KiB = 1024;
const MiB = 1024 * KiB;
const upTo = (count: number): number[] => Array.from({ length: count }, (_, layer) => layer);
const every = (count: number, each: number): { full: number[]; others: number[] } => ({
  full: upTo(count).filter((layer) => layer % each === each - 1),
  others: upTo(count).filter((layer) => layer % each !== each - 1),
});

function layoutOf(model: ModelShape, options: Partial<LayoutOptions> = {}): Layout {
  return computeLayout({ layout: 'per-layer', slots: 8, maxTokens: 131_072, pageBytes: 2 * MiB, ...options, model });
}

/** Layers 5, 11, … see all, the others the last 1,024 tokens: 52 windows and 10 of full attention. */
const gemma3 = (layout: 'auto' | 'per-layer' | 'sliced' | 'fused' = 'auto'): ModelShape => {
  const { full, others } = every(62, 6);
  return {
    layers: 62, kvHeads: 16, headDim: 128, dtype: 'bfloat16',
    layerSets: [
      { kind: 'window', layers: others, windowTokens: 1024, layout }, { kind: 'full', layers: full },
    ],
  };
};

const gptOss20b = (layout: 'auto' | 'per-layer' | 'sliced' | 'fused' = 'auto'): ModelShape => {
  const { full, others } = every(24, 2);
  return {
    layers: 24, kvHeads: 8, headDim: 64, dtype: 'bfloat16',
    layerSets: [{ kind: 'full', layers: full }, { kind: 'window', layers: others, windowTokens: 128, layout }],
  };
};

const llama4Scout: ModelShape = {
  layers: 48, kvHeads: 8, headDim: 128, dtype: 'bfloat16',
  layerSets: [
    { kind: 'chunk', layers: every(48, 4).others, chunkTokens: 8192 }, { kind: 'full', layers: every(48, 4).full },
  ],
};

const qwen3Next: ModelShape = {
  layers: 48, kvHeads: 2, headDim: 256, dtype: 'bfloat16',
  layerSets: [
    {
      kind: 'state', layers: every(48, 4).others,
      tensors: [
        { name: 'conv', shape: [3, 8192], dtype: 'bfloat16' },
        { name: 'recurrent', shape: [32, 128, 128], dtype: 'float32' },
      ],
    },
    { kind: 'full', layers: every(48, 4).full },
  ],
};

/** Bytes of a sequence of `tokens` tokens, without what pages are rounded up by. */
function exactBytes({ sets, constantSets }: Layout, tokens: number): number {
  const ofSet = ({ kind, windowTokens, chunkTokens, usedBytes }: LayerSetLayout): number =>
    usedBytes(kind === 'full' ? tokens : Math.min(tokens, (windowTokens ?? chunkTokens)!));
  const bytes = [...sets.map(ofSet), ...constantSets.map(({ faceBytes }) => faceBytes)];
  return bytes.reduce((total, one) => total + one, 0);
}

const mostBytes = ({ mostRows, rowBytes }: LayerSetLayout, newTokens: number): number => mostRows(newTokens) * rowBytes;

test('a text of 8k, 32k and 128k tokens takes what its layer sets keep', (t) => {
  const inMiB = (model: ModelShape): number[] =>
    [8192, 32_768, 131_072].map((tokens) => exactBytes(layoutOf(model), tokens) / MiB);
  t.deepEqual(inMiB(gemma3()), [1056, 2976, 10_656]);
  t.deepEqual(inMiB(gptOss20b()), [195, 771, 3075]);
  t.deepEqual(inMiB(llama4Scout), [1536, 2688, 7296]);
  t.deepEqual(inMiB(qwen3Next), [265.6875, 841.6875, 3145.6875]);
});

test('a window takes more than its tokens, by how its tensors share reservations', (t) => {
  const inMiB = (modelOf: (layout: 'per-layer' | 'sliced' | 'fused') => ModelShape, newTokens: number): number[] =>
    (['per-layer', 'sliced', 'fused'] as const).map((kind) =>
      mostBytes(layoutOf(modelOf(kind)).sets[1]!, newTokens) / MiB);
  t.deepEqual(inMiB(gemma3, 1), [624, 420, 418]);
  t.deepEqual(inMiB(gemma3, 2048), [1456, 1252, 1250]);
  t.deepEqual(inMiB(gptOss20b, 1), [96, 8, 6]);
});

test('a state takes its tensors, on pages of its own', (t) => {
  const { constantSets, sets } = layoutOf(qwen3Next);
  t.deepEqual(constantSets, [{
    kind: 'state', layers: every(48, 4).others, owners: undefined, faces: 2, faceBytes: 73.6875 * MiB, facePages: 37,
  }]);
  t.deepEqual(sets.map(({ kind, layers }) => [kind, layers.length]), [['full', 12]]);
  const half = layoutOf({ ...qwen3Next, parallel: { tensor: 2 } }).constantSets[0]!;
  t.is(half.faceBytes, 73.6875 * MiB / 2);
});

test('`auto` takes the first layout within 1.5 times the bytes of the window, else the smallest', (t) => {
  const chosen = (model: ModelShape, options?: Partial<LayoutOptions>): string[] =>
    layoutOf(model, options).sets.map(({ layout, layoutReason }) => `${layout} ${layoutReason}`);
  t.deepEqual(chosen(gemma3()), ['per-layer given', 'per-layer small'], '624 of 416 MiB are exactly 1.5 times');
  t.deepEqual(chosen(gemma3(), { layout: 'fused' }), ['fused given', 'per-layer small'], 'it is for full sets');
  t.deepEqual(chosen(gptOss20b()), ['per-layer given', 'fused smallest']);
  t.deepEqual(chosen(gptOss20b(), { pageBytes: 256 * KiB }), ['per-layer given', 'sliced small'], '4 of 3 MiB');
  t.deepEqual(chosen(gptOss20b('sliced')), ['per-layer given', 'sliced given']);
  t.deepEqual(chosen(llama4Scout), ['per-layer given', 'per-layer small']);
});

test('rows of a window of keys and values of different size end at the same token', (t) => {
  const model = (layout?: 'auto' | 'per-layer' | 'sliced' | 'fused'): ModelShape => ({
    layers: 2, kvHeads: 1, headDim: 192, valueHeadDim: 128, dtype: 'bfloat16',
    layerSets: [{ kind: 'window', layers: [0, 1], windowTokens: 100_000, layout }],
  });
  const setOf = (layout?: 'auto' | 'per-layer' | 'sliced' | 'fused'): LayerSetLayout => layoutOf(model(layout)).sets[0]!;
  t.like(setOf('per-layer'), { layoutReason: 'given', tokensPerRow: 16_384, pagesPerRow: 2 * (3 + 2) });
  t.like(setOf('sliced'), { tokensPerRow: 8_192, pagesPerRow: 3 + 2 });
  t.like(setOf('fused'), { pagesPerRow: 1 });
  t.like(setOf(), { layout: 'per-layer', layoutReason: 'small' }, '8 rows of 20 MiB for 122 MiB');
});

test('layers of full attention with a latent may have the keys of an index besides', (t) => {
  const v32: ModelShape = { layers: 61, attention: 'latent', latentDim: 576, indexDim: 128, dtype: 'bfloat16', parallel: { tensor: 8 } };
  const tokens = 2 ** 20;
  t.is(layoutOf(v32, { maxTokens: tokens }).usedBytes(tokens) / 2 ** 30, 83.875);
  t.deepEqual(tensorsOf(v32).slice(0, 3).map(({ name, heads, dim }) => `${name} ${heads}x${dim}`), ['layer.0.latent 1x576', 'layer.0.index 1x128', 'layer.1.latent 1x576']);
  t.deepEqual(layoutOf(v32, { layout: 'sliced' }).reservations.map(({ tokenBytes }) => tokenBytes), [61 * 2 * 704]);
  const { sets } = layoutOf({ ...v32, layers: 2, layerSets: [{ kind: 'full', layers: [1] }, { kind: 'window', layers: [0], windowTokens: 8 }] });
  t.deepEqual(sets.map(({ tensors }) => tensors.length), [2, 1]);
  refuses(t, () => tensorsOf({ layers: 1, kvHeads: 1, headDim: 8, dtype: 'int8', indexDim: 4 }),
    'KV_INVALID_SHAPE', { option: 'indexDim', value: 4 });
});

test('sets have reservations and tensors of their own, and rows are those of the full set', (t) => {
  const layout = layoutOf(gemma3('sliced'));
  t.deepEqual(layout.sets.map(({ kind, reservations, layers, tensors }) => [kind, reservations, layers.length, tensors.length]),
    [['full', { first: 0, count: 20 }, 10, 20], ['window', { first: 20, count: 2 }, 52, 104]]);
  t.is(layout.reservations.length, 22);
  t.deepEqual(layout.tensors.map(({ layer, role }) => `${layer} ${role}`), tensorsOf(gemma3()).map(({ layer, role }) => `${layer} ${role}`));
  t.deepEqual(layout.tensors.map(({ index }) => index), upTo(124));
  for (const { layers, tensors, reservations: { first, count } } of layout.sets) {
    t.deepEqual(tensors.map((index) => layout.tensors[index]!.layer), layers.flatMap((layer) => [layer, layer]));
    t.true(tensors.every((index) => layout.tensors[index]!.reservation - first < count));
  }
  const [full, window] = layout.sets as [LayerSetLayout, LayerSetLayout];
  t.deepEqual([layout.tokensPerRow, layout.pagesPerRow, layout.maxRows], [512, 20, 256]);
  t.deepEqual([full.tokensPerRow, full.pagesPerRow, full.maxRows], [512, 20, 256]);
  t.deepEqual([window.commonTokenBytes, window.pagesPerRow, window.maxRows], [52 * 4 * KiB, 2, 13_312]);
  t.is(window.pagesIn(21, 5), 5, 'a reservation has its position in the whole layout');
  t.throws(() => window.pagesIn(19, 5), { code: 'KV_INVALID_OPTION' });
  t.true([layout.sets, layout.constantSets, full, window.layers, window.reservations].every(Object.isFrozen));
});

test('one full set is what a model without sets is', (t) => {
  for (const layout of ['per-layer', 'sliced', 'fused'] as const) {
    const plain: ModelShape = { layers: 3, kvHeads: 2, headDim: 64, dtype: 'float16', layerShapes: [{}, { kvHeads: 5 }, {}] };
    const without = layoutOf(plain, { layout });
    const withSet = layoutOf({ ...plain, layerSets: [{ kind: 'full', layers: [2, 0, 1] }] }, { layout });
    t.is(JSON.stringify(withSet), JSON.stringify(without));
    t.deepEqual(without.sets.map(({ kind, layers }) => [kind, layers]), [['full', [0, 1, 2]]]);
    for (const rows of [0, 1, 7]) t.is(without.sets[0]!.pagesFor(rows), without.pagesFor(rows));
  }
});

test('numbers of a layer go before those of its set, and these before the model\'s', (t) => {
  const heads = tensorsOf({
    layers: 4, kvHeads: 16, headDim: 256, dtype: 'bfloat16', layerShapes: [{}, {}, { kvHeads: 2 }, {}],
    layerSets: [
      { kind: 'window', layers: [0, 1], windowTokens: 4, valueHeadDim: 8 },
      { kind: 'full', layers: [2, 3], kvHeads: 4, headDim: 512 },
    ],
  }).filter(({ role }) => role === 'value').map(({ heads, dim }) => `${heads}x${dim}`);
  t.deepEqual(heads, ['16x8', '16x8', '2x512', '4x512']);
});

test('shared layers keep nothing and name their owners; fixed ones keep their tokens', (t) => {
  const model: ModelShape = {
    layers: 6, kvHeads: 2, headDim: 64, dtype: 'bfloat16',
    layerSets: [
      { kind: 'window', layers: [0], windowTokens: 512 },
      { kind: 'full', layers: [1] },
      { kind: 'shared', layers: [4, 2], of: [0, 1] },
      { kind: 'shared', layers: [3], of: 1 },
      { kind: 'fixed', layers: [5], tokens: 1500, kvHeads: 4 },
    ],
  };
  const { tensors, sets, constantSets } = layoutOf(model);
  t.deepEqual(tensors.map(({ name }) => name), ['layer.0.key', 'layer.0.value', 'layer.1.key', 'layer.1.value']);
  t.deepEqual(sets.map(({ kind, layers }) => [kind, layers]), [['full', [1]], ['window', [0]]]);
  t.deepEqual(constantSets.map(({ kind, layers, owners, faces, faceBytes }) => [kind, layers, owners, faces, faceBytes]), [
    ['shared', [2, 4], [1, 0], 0, 0], ['shared', [3], [1], 0, 0], ['fixed', [5], undefined, 1, 1500 * 1024],
  ]);
  t.throws(() => layoutOf({ ...model, parallel: { pipeline: 2, pipelineRank: 1 } }), {
    code: 'KV_INVALID_SHAPE', message: /^`layerSets\[2\]\.of` is 0 .*layer 4/,
  });
});

test('a pipeline worker has the layers of its own, and only sets that have some', (t) => {
  const parts = [0, 1, 2].map((pipelineRank) => {
    const { sets, constantSets, tensors } = layoutOf({
      layers: 6, kvHeads: 1, headDim: 8, dtype: 'int8', parallel: { pipeline: 3, pipelineRank },
      layerSets: [
        { kind: 'full', layers: [3, 4] }, { kind: 'window', layers: [5, 1, 0], windowTokens: 3 },
        { kind: 'state', layers: [2], tensors: [{ name: 'conv', shape: [3, 5], dtype: 'float32' }] },
      ],
    });
    return {
      sets: sets.map(({ kind, layers, tensors }) => `${kind} ${layers.join()} ${tensors.join()}`),
      constant: constantSets.map(({ kind, faceBytes }) => `${kind} ${faceBytes}`), tensors: tensors.length,
    };
  });
  t.deepEqual(parts, [
    { sets: ['window 0,1 0,1,2,3'], constant: [], tensors: 4 },
    { sets: ['full 3 0,1'], constant: ['state 60'], tensors: 2 },
    { sets: ['full 4 0,1', 'window 5 2,3'], constant: [], tensors: 4 },
  ]);
});

test('states that no worker could hold are refused', (t) => {
  const tensors = [{ name: 's', shape: [2 ** 20, 2 ** 20, 2 ** 20], dtype: 'int8' as const }];
  const { full, others } = every(48, 4);
  t.throws(() => layoutOf({ ...qwen3Next, layerSets: [{ kind: 'full', layers: full }, { kind: 'state', layers: others, tensors }] }), { code: 'KV_OUT_OF_ADDRESS_SPACE' });
  const divided: LayerSetShape[] = [{ kind: 'state', layers: [0], tensors: [{ name: 's', shape: [3], dtype: 'int32' }] }, { kind: 'full', layers: [1] }];
  t.throws(() => layoutOf({ layers: 2, kvHeads: 2, headDim: 8, dtype: 'int8', parallel: { tensor: 2 }, layerSets: divided }), { code: 'KV_INVALID_SHAPE' });
});

test('rows of a window of 6 in rows of 4: 3 at one new token, 6 at 16, and those before the first token can go', (t) => {
  const { sets: [set] } = layoutOf({
    layers: 1, kvHeads: 1, headDim: 8192, dtype: 'float16', layerSets: [{ kind: 'window', layers: [0], windowTokens: 6, layout: 'per-layer' }],
  }, { pageBytes: 64 * KiB });
  t.deepEqual([1, 16, 32, 48].map((newTokens) => set!.mostRows(newTokens)), [3, 6, 10, 14]);
  t.is(set!.mostRows(1, 3), 3);
  t.deepEqual([0, 5, 6, 9, 10, 20, 100, 410].map((length) => set!.firstToken(length)), [0, 0, 1, 4, 5, 15, 95, 405]);
  t.deepEqual([0, 5, 6, 9, 10, 20, 100, 410].map((length) => set!.firstRow(length)), [0, 0, 0, 1, 1, 3, 23, 101]);
  t.is(set!.mostRows(200_000), set!.maxRows);
  t.throws(() => set!.mostRows(-1), { code: 'KV_INVALID_OPTION' });
  t.throws(() => set!.mostRows(1, 0.5), { code: 'KV_INVALID_OPTION' });
  t.throws(() => set!.firstRow(131_073), { code: 'KV_LENGTH_OUT_OF_RANGE' });
});

test('whatever the shape, the bound is what the worst length needs, and no row more', (t) => {
  const seed = seedOf('layer-sets');
  t.log(`VKV_TEST_SEED=${seed}`);
  const random = new Random(seed);
  const rounds = scaled(300);
  for (let round = 0; round < rounds; round += 1) {
    const kind = random.chance(0.5) ? 'window' as const : 'chunk' as const;
    const [seen, newTokens, rollbackTokens] = [1 + random.integer(20), 1 + random.integer(24), random.integer(6)];
    const [headDim, valueHeadDim] = [1 + random.integer(12), 1 + random.integer(12)];
    const pageBytes = 1 + random.integer(64);
    // All places in a page, each with a length before it that has its whole window and what may be taken back.
    const longest = seen * (pageBytes + 2) + rollbackTokens + newTokens;
    const isShort = random.chance(0.2);
    const maxTokens = isShort ? newTokens + random.integer(seen + rollbackTokens + newTokens) : longest;
    const need = kind === 'window' ? { kind, windowTokens: seen } : { kind, chunkTokens: seen };
    const { sets: [set] } = layoutOf({
      layers: 1, kvHeads: 1, headDim, valueHeadDim, dtype: 'int8', layerSets: [{ ...need, layers: [0] }],
    }, { slots: 1, maxTokens, pageBytes });
    const most = mostRowsByCounting(set!, pageBytes, maxTokens, newTokens, rollbackTokens);
    const bound = set!.mostRows(newTokens, rollbackTokens);
    const what = JSON.stringify({ round, set, pageBytes, maxTokens, newTokens, rollbackTokens, bound, most });
    t.true(isShort ? bound >= most && bound <= set!.maxRows : bound === most, what);
  }
});

/** Looks at each length by itself: which tokens are seen or written, and which rows their bytes lie in. */
function mostRowsByCounting(
  set: LayerSetLayout, pageBytes: number, maxTokens: number, newTokens: number, rollbackTokens: number,
): number {
  const sees = (position: number, token: number): boolean => token <= position && (set.kind === 'window'
    ? position - token < set.windowTokens!
    : Math.floor(position / set.chunkTokens!) === Math.floor(token / set.chunkTokens!));
  let most = 0;
  for (let length = 0; length + newTokens <= maxTokens; length += 1) {
    let first = Math.max(0, length - rollbackTokens);
    const from = first;
    while (first > 0 && sees(from, first - 1)) first -= 1;
    if (set.firstToken(from) !== first) throw new Error(`${set.kind}: first token of ${from}`);
    const rows = new Set<number>();
    for (let token = first; token < length + newTokens; token += 1) {
      const lastByte = (token + 1) * set.commonTokenBytes - 1;
      for (let row = Math.floor(token * set.commonTokenBytes / pageBytes); row * pageBytes <= lastByte; row += 1) rows.add(row);
    }
    if (set.firstRow(from) !== Math.min(...rows)) throw new Error(`${set.kind}: first row of ${from}`);
    most = Math.max(most, rows.size);
  }
  return most;
}
