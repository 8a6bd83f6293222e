// checkIndex: looks through the whole prefix index for what must always hold, and throws KV_INTERNAL at the first thing
// that does not. For tests: it takes time in proportion to everything that is cached.

import { createError } from '../base/errors.js';
import type { CachePool } from './cache-pool.js';
import type { NodeTable } from './node-table.js';
import type { OpenPaths } from './open-paths.js';
import type { PrefixTree } from './prefix-tree.js';
import type { RowLedger } from './row-ledger.js';

export interface CheckedParts {
  readonly tree: PrefixTree;
  readonly ledger: RowLedger;
  readonly pool: CachePool;
  readonly paths: OpenPaths;
}

export function checkIndex(parts: CheckedParts): void {
  const { nodes } = parts.tree;
  const seen = new Set<number>();
  let pooled = 0;
  let paths = 0;
  for (let node = 0; node < nodes.end; node += 1) {
    if (!nodes.isUsed(node)) continue;
    paths += checkPins(parts, node);
    if (parts.tree.isRoot(node)) continue;
    checkText(parts, node);
    parts.ledger.forOwnRows(node, (row) => {
      expect(parts.ledger.isHolding(row) && !seen.has(row), 'a row hangs on two nodes, or is not held', row);
      seen.add(row);
    });
    if (nodes.pins[node] === 0) pooled += parts.ledger.ownRows(node);
  }
  expect(seen.size === parts.ledger.heldRows, 'the count of held rows is wrong', parts.ledger.heldRows, seen.size);
  expect(pooled === parts.pool.rows, 'the count of pooled rows is wrong', parts.pool.rows, pooled);
  expect(paths === parts.paths.count, 'the count of open paths is wrong', parts.paths.count, paths);
}

/** Returns how many paths end in the node. */
function checkPins({ tree }: CheckedParts, node: number): number {
  const { nodes } = tree;
  let ending = 0;
  for (let path = nodes.ending[node]; path !== undefined; path = path.next) {
    const isInside = path.length <= nodes.to[node]! && (path.length > nodes.from[node]! || tree.isRoot(node));
    expect(path.node === node && path.isOpen && isInside, 'a path ends outside its node', node, path.length);
    ending += 1;
  }
  let below = 0;
  for (let child = nodes.firstChild[node]!; child >= 0; child = nodes.nextSibling[child]!) below += nodes.pins[child]!;
  expect(nodes.pins[node] === ending + below, 'the pins of a node are miscounted', node, nodes.pins[node]);
  return ending;
}

function checkText({ tree, ledger }: CheckedParts, node: number): void {
  const { nodes } = tree;
  const parent = nodes.parent[node]!;
  const to = nodes.to[node]!;
  expect(
    nodes.isUsed(parent) && nodes.from[node] === nodes.to[parent], 'a node does not go on where its parent ends', node);
  expect(to > nodes.from[node]!, 'a node is empty', node);
  expect(
    tree.tokenAt(node, nodes.from[node]!) === nodes.firstToken[node], 'a node does not start with its first token',
    node);
  expect(tree.child(parent, nodes.firstToken[node]!) === node, 'a node is not found below its parent', node);
  expect(nodes.uses[node]! <= nodes.uses[parent]!, 'a node is used more than its parent', node);
  let rows = 0;
  let last = -1;
  ledger.forOwnRows(node, (row) => { last = row; rows += 1; });
  expect(rows === ledger.ownRows(node), 'the rows of a node are miscounted', node, rows);
  if (rows > 0 && nodes.tailRow[node]! < 0 || rows > 1) {
    const above = ledger.rowAbove(node, last);
    expect(above === nodes.lastRow[parent], 'the rows of a node do not go on where its parent\'s end', node, above);
  } else expect(nodes.lastRow[node] === nodes.lastRow[parent], 'a node without whole rows has some', node);
  if (!tree.isLeaf(node)) expect(nodes.tailRow[node] === -1, 'a node has a tail and children', node);
  if (nodes.pins[node] === 0) checkPooled(ledger, nodes, node, rows);
  if (nodes.tailRow[node]! >= 0) {
    expect(ledger.rowsFor(to) === ledger.wholeRows(to) + 1, 'a leaf has a tail and no token in it', node, to);
  }
}

function checkPooled(ledger: RowLedger, nodes: NodeTable, node: number, rows: number): void {
  const child = nodes.firstChild[node]!;
  if (child < 0) {
    const isBacked = ledger.backedTokens(node) === nodes.to[node];
    expect(isBacked && rows > 0, 'tokens of a leaf that no path uses lie in no row', node, nodes.to[node]);
  } else if (nodes.isOnlyChild(child)) {
    expect(nodes.uses[node] !== nodes.uses[child] && rows > 0, 'a node and its only child could be one', node, child);
  }
}

function expect(holds: boolean, problem: string, what?: number, howMany?: number): void {
  if (!holds) throw createError('KV_INTERNAL', { problem, what, howMany });
}
