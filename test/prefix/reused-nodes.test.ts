// The policy `adaptive` knows texts by the numbers of their nodes, and a number comes back as another text.

import test from 'ava';

import { adaptive, type EvictionContext } from '#internal/prefix/index.js';

const nodeCount = 11;
const textTokens = 64;

/** Texts below one root, each a node, which hold what their uses and ages say. */
function texts() {
  const nodes = {
    parent: new Int32Array(nodeCount), from: new Int32Array(nodeCount), to: new Int32Array(nodeCount).fill(textTokens),
    firstChild: new Int32Array(nodeCount).fill(-1), uses: new Float64Array(nodeCount), lastUse: new Float64Array(nodeCount),
    level: new Uint8Array(nodeCount),
  };
  nodes.parent[0] = -1;
  const context: EvictionContext = {
    nodes, selected: () => undefined, rowsOf: () => 1, budgetRows: () => Infinity, poolTokens: Infinity, hashSeed: 1,
    copyText: (node, from, to, target, start) => {
      for (let at = from; at < to; at += 1) target[start + at - from] = 1_000 * (textOf[node] ?? node) + at;
    },
  };
  /** By node, where that is not its number. */
  const textOf: (number | undefined)[] = [];
  const policy = adaptive()(context);
  let now = 0;
  return {
    policy, textOf,
    /** The node has been released so often since it was made. */
    add: (node: number, uses: number) => {
      now += 1;
      nodes.uses[node] = uses;
      nodes.lastUse[node] = now;
      policy.add(node);
    },
    observe: (node: number) => { policy.observe!(node, textTokens, { promptTokens: textTokens, newTokens: textTokens, answerTokens: 0 }); },
  };
}

/**
 * Learns that the texts of nodes 1 … `count`, evicted together, come back, and that others which are used twice do not; then in
 * which order `others` go, each used twice.
 */
function orderOf(others: readonly number[], count: number): number[] {
  const { policy, textOf, add, observe } = texts();
  const evicted = [1, 2].slice(0, count);
  const leaves = new Int32Array(nodeCount);
  for (let round = 0; round < 200; round += 1) {
    textOf[0] = nodeCount + round;
    observe(0);
    observe(0);
    for (const node of evicted) {
      add(node, 1);
      observe(node);
    }
    if (count === 1) policy.victim();
    else policy.victims!(leaves);
    for (const node of evicted) policy.remove(node);
  }
  for (const node of others) add(node, 2); // two sequences used it before the policy saw it
  return others.map(() => {
    const victim = policy.victim();
    policy.remove(victim);
    return others.indexOf(victim);
  });
}

for (const count of [1, 2]) {
  test(`adaptive: a number that comes back is another text, where ${count} went together`, (t) => {
    t.deepEqual(orderOf([3, 1, 4, 2, 5], count), orderOf([6, 7, 8, 9, 10], count));
  });
}
