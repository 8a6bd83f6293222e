/** What a request that selected these of a block's `count` tokens notes of them: each is worth 1, the others 0. */
export function selectedWeights(selected: Iterable<number>, count: number): Float32Array {
  const weights = new Float32Array(count);
  for (const token of selected) weights[token] = 1;
  return weights;
}
