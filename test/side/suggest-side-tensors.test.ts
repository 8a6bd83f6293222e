// suggestSideTensors: which outputs look like one row per token, and why the rest do not.

import test from 'ava';

import { SideTensorSuggestion, suggestSideTensors, type PassThroughReason } from 'virtual-kv';

const hidden = (tokens: number) => ({ shape: [tokens, 2048], dtype: 'bfloat16' });

/** The reason for output `x`, after the given passes of [its value, tokens]. */
function reasonOf(...passes: readonly (readonly [unknown, number])[]): PassThroughReason | undefined {
  const suggestion = new SideTensorSuggestion();
  for (const [x, tokens] of passes) suggestion.observe({ x }, tokens);
  return suggestion.passedThrough['x']?.reason;
}

test('an output whose rows followed two different numbers of tokens is suggested, as the option of a cache', (t) => {
  const suggestion = suggestSideTensors({ hidden: hidden(12), mm_feature: { shape: [12, 16], dtype: 'float32' } }, 12);
  t.deepEqual(suggestion.sideTensors, {});
  t.is(suggestion.observe({ hidden: hidden(8), mm_feature: { shape: [8, 16], dtype: 'float32' } }, 8), suggestion);
  t.deepEqual(suggestion.sideTensors, { hidden: { width: 2048, dtype: 'bfloat16' }, mm_feature: { width: 16, dtype: 'float32' } });
  t.deepEqual(suggestion.passedThrough, {});
  suggestion.observe({ hidden: hidden(1), mm_feature: { shape: [1, 16], dtype: 'float32' } }, 1);
  t.deepEqual(Object.keys(suggestion.sideTensors), ['hidden', 'mm_feature']);
});

test('the same number of tokens again says nothing new', (t) => {
  t.is(reasonOf([hidden(12), 12]), 'one-token-count');
  t.is(reasonOf([hidden(12), 12], [hidden(12), 12], [hidden(12), 12]), 'one-token-count');
  t.regex(suggestSideTensors({ x: hidden(12) }, 12).passedThrough['x']!.explanation, /seen with 12 tokens only/);
});

test('a constant of 12 rows and a 12-token prompt match by accident, and that is found out', (t) => {
  const constant = { shape: [12, 16], dtype: 'float32' };
  t.is(reasonOf([constant, 12]), 'one-token-count');
  t.is(reasonOf([constant, 12], [constant, 8]), 'accidental-match');
  t.is(reasonOf([constant, 12], [constant, 8], [constant, 12], [constant, 12]), 'accidental-match', 'for good');
  t.is(reasonOf([constant, 8], [constant, 12]), 'first-dimension');
  const suggestion = suggestSideTensors({ constant }, 12).observe({ constant }, 8);
  t.deepEqual(suggestion.sideTensors, {});
  t.is(suggestion.passedThrough['constant']!.explanation, 'it has 12 rows in a pass of 8 tokens, although it had as many rows as a pass of 12 tokens');
});

test('an output that was sure is not any more once it stops following the tokens', (t) => {
  const suggestion = suggestSideTensors({ x: hidden(12) }, 12).observe({ x: hidden(8) }, 8);
  t.deepEqual(Object.keys(suggestion.sideTensors), ['x']);
  suggestion.observe({ x: hidden(1) }, 5);
  t.deepEqual(suggestion.sideTensors, {});
  t.is(suggestion.passedThrough['x']!.reason, 'accidental-match');
});

test('an output may be missing in a pass, and come later', (t) => {
  const suggestion = suggestSideTensors({ hidden: hidden(12) }, 12).observe({}, 5).observe({ hidden: hidden(8), late: hidden(8) }, 8);
  t.deepEqual(Object.keys(suggestion.sideTensors), ['hidden']);
  t.is(suggestion.passedThrough['late']!.reason, 'one-token-count');
  t.deepEqual(Object.keys(suggestion.observe({ late: hidden(3) }, 3).sideTensors), ['hidden', 'late']);
});

test('scalars, lists and other things are passed through', (t) => {
  for (const scalar of [5, 5n, 'text', true, null, undefined, Symbol('x')]) t.is(reasonOf([scalar, 5]), 'scalar');
  for (const list of [[], [1, 2, 3], [hidden(3), hidden(3)]]) t.is(reasonOf([list, 3]), 'list');
  const others = [{}, () => {}, new Map(), new Date(0), { shape: 3 }, { shape: 'ab' }, { shape: [3, -1] }, { shape: [3, 'x'] }, { shape: [3, 0.5] }];
  for (const other of others) t.is(reasonOf([other, 3]), 'not-a-tensor');
  t.is(reasonOf([Object.assign(new Float32Array(5), { shape: [3, 2] }), 3]), 'not-a-tensor', 'five elements are not 3 × 2');
});

test('tensors of other than two dimensions are passed through', (t) => {
  for (const shape of [[], [3], [3, 2, 8], [3, 0]]) t.is(reasonOf([{ shape, dtype: 'float32' }, 3]), 'dimensions');
  t.is(reasonOf([new Float32Array(3), 3]), 'dimensions', 'a typed array without a shape has one');
  t.is(suggestSideTensors({ x: { shape: [3, 2, 8], dtype: 'float32' } }, 3).passedThrough['x']!.explanation,
    'its shape is [3 × 2 × 8], and not [tokens × width]');
});

test('another first dimension is passed through: logits of the last token, rows per request', (t) => {
  t.is(reasonOf([{ shape: [1, 32_000], dtype: 'float32' }, 12]), 'first-dimension');
  t.is(suggestSideTensors({ x: { shape: [1, 32_000], dtype: 'float32' } }, 12).passedThrough['x']!.explanation, 'it has 1 row in a pass of 12 tokens');
});

test('another width or dtype is passed through, also after it was sure', (t) => {
  const wide = { shape: [8, 4096], dtype: 'bfloat16' };
  const float = { shape: [8, 2048], dtype: 'float32' };
  t.is(reasonOf([hidden(12), 12], [wide, 8]), 'width-changed');
  t.is(reasonOf([hidden(12), 12], [float, 8]), 'dtype-changed');
  t.is(reasonOf([hidden(12), 12], [hidden(3), 3], [wide, 8]), 'width-changed');
  t.is(reasonOf([hidden(12), 12], [hidden(3), 3], [float, 8], [hidden(5), 5]), 'dtype-changed', 'for good');
  const { passedThrough } = suggestSideTensors({ x: hidden(12), y: hidden(12) }, 12).observe({ x: wide, y: float }, 8);
  t.is(passedThrough['x']!.explanation, 'its rows have 4,096 elements, and had 2,048');
  t.is(passedThrough['y']!.explanation, 'its elements are float32, and were bfloat16');
});

test('a dtype that no cache holds, or that is not said, is passed through', (t) => {
  for (const dtype of ['int64', 'float64', 'bool', 'toString']) t.is(reasonOf([{ shape: [3, 2], dtype }, 3]), 'dtype-unknown');
  t.is(reasonOf([{ shape: [3, 2] }, 3]), 'dtype-unknown');
  t.is(reasonOf([{ shape: [3, 2], data: new Uint16Array(6) }, 3]), 'dtype-unknown', 'float16 or bfloat16');
  t.is(reasonOf([{ shape: [3, 2], dtype: 'int64' }, 3], [{ shape: [3, 2], dtype: 'float32' }, 3]), 'dtype-unknown', 'for good');
});

test('tensors may say their shape and dtype as engines in Node.js do', (t) => {
  const tensors: Readonly<Record<string, (tokens: number) => unknown>> = {
    'onnxruntime': (tokens) => ({ dims: [tokens, 4], type: 'float32', data: new Float32Array(4 * tokens) }),
    'a typed array with a shape': (tokens) => Object.assign(new Float32Array(4 * tokens), { shape: [tokens, 4] }),
    'elements in a typed array': (tokens) => ({ shape: [tokens, 4], data: new Float32Array(4 * tokens) }),
    'a shape in a typed array': (tokens) => ({ shape: Int32Array.of(tokens, 4), dtype: 'float32' }),
    'short names': (tokens) => ({ shape: [tokens, 4], dtype: 'F32' }),
  };
  for (const [name, make] of Object.entries(tensors)) {
    const { sideTensors } = suggestSideTensors({ [name]: make(5) }, 5).observe({ [name]: make(3) }, 3);
    t.deepEqual(sideTensors, { [name]: { width: 4, dtype: 'float32' } });
  }
  const named = { bf16: 'bfloat16', F16: 'float16', I8: 'int8', float8_e4m3fn: 'float8', F8_E5M2: 'float8' };
  for (const [dtype, meant] of Object.entries(named)) {
    const { sideTensors } = suggestSideTensors({ x: { shape: [5, 4], dtype } }, 5).observe({ x: { shape: [3, 4], dtype } }, 3);
    t.is(sideTensors['x']?.dtype, meant as 'int8');
  }
});

test('elements that are not on this machine are not read', (t) => {
  const remote = (tokens: number) => ({ dims: [tokens, 4], type: 'float16', get data(): never { throw new Error('on the GPU'); } });
  t.is(suggestSideTensors({ x: remote(5) }, 5).observe({ x: remote(3) }, 3).sideTensors['x']?.width, 4);
});

test('outputs may have any name', (t) => {
  const outputs = (tokens: number) => Object.fromEntries(['__proto__', 'constructor', '24', ''].map((name) => [name, hidden(tokens)]));
  const { sideTensors, passedThrough } = suggestSideTensors(outputs(5), 5).observe(outputs(3), 3);
  t.deepEqual(Object.keys(sideTensors).sort(), ['', '24', '__proto__', 'constructor']);
  t.deepEqual(Object.getPrototypeOf(sideTensors), Object.prototype);
  t.deepEqual(Object.keys(passedThrough), []);
});

test('a pass that cannot be read is refused whole', (t) => {
  const suggestion = suggestSideTensors({ hidden: hidden(12) }, 12);
  const bad = { hidden: hidden(8), get other(): never { throw new Error('mine'); } };
  t.throws(() => suggestion.observe(bad, 8), { message: 'mine' });
  t.is(suggestion.passedThrough['hidden']!.reason, 'one-token-count');
});
