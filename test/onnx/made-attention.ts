// madeAttention: attention of several nodes, as torch's exporters write it: heads apart, rotary positions by halves, past and new
// tokens joined, K and V repeated for each query head, and then products with a softmax, or `Attention` of opset 23.

import type { NewNode } from '#internal/onnx/graph.js';

/** What adds nodes and tensors to a graph; each returns the name it is given. */
export interface GraphMaker {
  readonly add: (operator: string, from: readonly string[], to: string | readonly string[], rest?: Partial<NewNode>) => string;
  readonly ints: (name: string, dims: readonly number[], values: readonly number[]) => string;
  readonly floats: (name: string, dims: readonly number[], values: Float32Array) => string;
  /** Of the graph's floats, by ONNX's number. */
  readonly type: number;
}

export interface AttentionShape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly dim: number;
}

export interface UnfusedForm {
  /** Products and a softmax; `Attention` of opset 23 that has the past, with heads in rows or apart, or whose past is joined before it. */
  readonly kind: 'softmax' | 'rows' | 'heads' | 'joined';
  /** The mask, of booleans, replaces scores in the place of being added to them. */
  readonly replacesScores?: boolean;
  /** Where scores are scaled: half in Q and half in K, as torch's; behind the product; or not at all. */
  readonly scaled?: 'both' | 'scores' | 'none';
  readonly scale?: number;
  readonly softcap?: number;
  /** K is turned as a matrix of three dimensions. */
  readonly turnsByRows?: boolean;
  /** Rows that see nothing give 0. */
  readonly hasNaNs?: boolean;
  /** Query heads take K and V heads in turn, not in groups: another model than the cache's attention. */
  readonly repeatsInTurn?: boolean;
}

interface Layer extends AttentionShape {
  readonly form: UnfusedForm;
  readonly at: (name: string) => string;
  /** Rows [batch, tokens, heads · dim]. */
  readonly rows: readonly [queries: string, keys: string, values: string];
  readonly past: readonly string[];
  readonly present: readonly string[];
  /** '': a causal `Attention` without one. */
  readonly mask: string;
}

/** What a graph has once: turns by position, as [1, 1, tokens, dim]; shapes. */
export function addShared({ add, ints, floats, type }: GraphMaker, { heads, kvHeads, dim }: AttentionShape): void {
  ints('u.axis1', [1], [1]);
  ints('u.axis2', [1], [2]);
  ints('u.split_heads', [4], [0, 0, heads, dim]);
  ints('u.split_kv_heads', [4], [0, 0, kvHeads, dim]);
  ints('u.join_heads', [3], [0, 0, heads * dim]);
  for (const [name, value] of [['start', 0], ['middle', dim / 2], ['end', 2 ** 31], ['last', -1]] as const) ints(`u.${name}`, [1], [value]);
  floats('u.frequencies', [1, dim / 2, 1], Float32Array.from({ length: dim / 2 }, (_, at) => 100 ** (-2 * at / dim)));
  add('Cast', [add('Unsqueeze', ['position_ids', 'u.axis1'], 'u.positions')], 'u.float_positions', { integers: { to: type } });
  add('Transpose', [add('MatMul', ['u.frequencies', 'u.float_positions'], 'u.angles')], 'u.angles_by_token', { integers: { perm: [0, 2, 1] } });
  add('Concat', ['u.angles_by_token', 'u.angles_by_token'], 'u.all_angles', { integers: { axis: -1 } });
  for (const name of ['Cos', 'Sin']) add('Unsqueeze', [add(name, ['u.all_angles'], `u.${name}1`), 'u.axis1'], `u.${name}`);
}

/** Attention as rows [batch, tokens, heads · dim]. */
export function addAttention(maker: GraphMaker, layer: Layer): string {
  const { add } = maker;
  const { form, at, rows, past, present, mask, heads, kvHeads } = layer;
  const split = (from: string, shape: string, to: string): string =>
    add('Transpose', [add('Reshape', [from, shape], `${to}.split`)], to, { integers: { perm: [0, 2, 1, 3] } });
  const queries = turned(maker, split(rows[0], 'u.split_heads', at('q4')));
  const keys = turned(maker, split(rows[1], 'u.split_kv_heads', at('k4')));
  const values = split(rows[2], 'u.split_kv_heads', at('v4'));
  const { scale, softcap } = form;
  const floats = { ...scale === undefined ? {} : { scale }, ...softcap === undefined ? {} : { softcap } };
  const isCausal = mask === '' ? { is_causal: 1 } : {};
  if (form.kind === 'rows') {
    const joined = (from: string, shape: string): string =>
      add('Reshape', [add('Transpose', [from], `${from}.by_token`, { integers: { perm: [0, 2, 1, 3] } }), shape], `${from}.rows`);
    return add('Attention', [joined(queries, 'u.join_heads'), joined(keys, maker.ints(at('join_kv'), [3], [0, 0, kvHeads * layer.dim])), rows[2], mask, ...past],
      [at('attended'), ...present], { floats, integers: { q_num_heads: heads, kv_num_heads: kvHeads, ...isCausal } });
  }
  let output: string;
  if (form.kind === 'heads') output = add('Attention', [queries, keys, values, mask, ...past], [at('attended4'), ...present], { floats, integers: isCausal });
  else {
    const all = [keys, values].map((name, kind) => add('Concat', [past[kind]!, name], present[kind]!, { integers: { axis: -2 } }));
    const [allKeys, allValues] = all.map((name, kind) => repeated(maker, layer, name, at(`repeated${kind}`)));
    if (form.kind === 'joined') output = add('Attention', [queries, allKeys!, allValues!, mask], at('attended4'), { floats });
    else output = productsOf(maker, layer, [queries, allKeys!, allValues!]);
  }
  return add('Reshape', [add('Transpose', [output], at('by_token'), { integers: { perm: [0, 2, 1, 3] } }), 'u.join_heads'], at('attended'));
}

/** x · cos + (−second half, first half) · sin. */
function turned({ add }: GraphMaker, from: string): string {
  const first = add('Slice', [from, 'u.start', 'u.middle', 'u.last'], `${from}.first`);
  const second = add('Slice', [from, 'u.middle', 'u.end', 'u.last'], `${from}.second`);
  const swapped = add('Concat', [add('Neg', [second], `${from}.negative`), first], `${from}.swapped`, { integers: { axis: -1 } });
  return add('Add', [add('Mul', [from, 'u.Cos'], `${from}.cos`), add('Mul', [swapped, 'u.Sin'], `${from}.sin`)], `${from}.turned`);
}

/** K or V once for each query head, by a shape that is computed. */
function repeated({ add, ints }: GraphMaker, { form, heads, kvHeads, dim }: Layer, from: string, to: string): string {
  if (heads === kvHeads) return from;
  const tokens = add('Gather', [add('Shape', [from], `${to}.shape`), ints(`${to}.two`, [1], [2])], `${to}.tokens`, { integers: { axis: 0 } });
  const rest = [tokens, ints(`${to}.dim`, [1], [dim])];
  const one = ints(`${to}.one`, [1], [1]);
  const groups = form.repeatsInTurn ? [heads / kvHeads, kvHeads] : [kvHeads, heads / kvHeads];
  const wide = add('Concat', [one, ints(`${to}.groups`, [2], groups), ...rest], `${to}.wide`, { integers: { axis: 0 } });
  const apart = add('Unsqueeze', [from, form.repeatsInTurn ? 'u.axis1' : 'u.axis2'], `${to}.apart`);
  const shape = add('Concat', [one, ints(`${to}.heads`, [1], [heads]), ...rest], `${to}.joined`, { integers: { axis: 0 } });
  return add('Reshape', [add('Expand', [apart, wide], `${to}.expanded`), shape], to);
}

function productsOf({ add, ints, floats }: GraphMaker, { form, at, mask, heads, dim }: Layer, [queries, keys, values]: readonly [string, string, string]): string {
  const { scaled = 'both', scale = 1 / Math.sqrt(dim), softcap } = form;
  const number = (name: string, value: number): string => floats(at(name), [], Float32Array.of(value));
  let [left, right] = [queries, keys];
  if (form.turnsByRows) {
    const tokens = add('Gather', [add('Shape', [right], at('k_shape')), ints(at('k_two'), [1], [2])], at('k_tokens'), { integers: { axis: 0 } });
    const width = ints(at('k_dim'), [1], [dim]);
    const shape = (name: string, parts: readonly string[]): string => add('Concat', parts, at(name), { integers: { axis: 0 } });
    const flat = add('Reshape', [right, shape('k_flat_shape', [ints(at('k_any'), [1], [-1]), tokens, width])], at('k_flat'));
    const lying = add('Transpose', [flat], at('k_lying'), { integers: { perm: [0, 2, 1] } });
    right = add('Reshape', [lying, shape('k_shape4', [ints(at('k_heads'), [2], [1, heads]), width, tokens])], at('kt'));
  } else right = add('Transpose', [right], at('kt'), { integers: { perm: [0, 1, 3, 2] } });
  if (scaled === 'both') {
    const root = add('Sqrt', [number('scale', scale)], at('root'));
    left = add('Mul', [left, root], at('q_scaled'));
    right = add('Mul', [right, root], at('kt_scaled'));
  }
  let scores = add('MatMul', [left, right], at('scores'));
  if (scaled === 'scores') scores = add('Div', [scores, number('divisor', 1 / scale)], at('scores_scaled'));
  if (softcap !== undefined) {
    const cap = number('cap', softcap);
    scores = add('Mul', [add('Tanh', [add('Div', [scores, cap], at('scores_small'))], at('scores_bent')), cap], at('scores_capped'));
  }
  if (form.replacesScores) scores = add('Where', [mask, scores, number('nothing', -1e9)], at('scores_masked'));
  else if (mask !== '') scores = add('Add', [scores, mask], at('scores_masked'));
  let weights = add('Softmax', [scores], at('weights'), { integers: { axis: -1 } });
  if (form.hasNaNs) weights = add('Where', [add('IsNaN', [weights], at('is_nan')), number('none', 0), weights], at('weights_real'));
  return add('MatMul', [weights, values], at('attended4'));
}
