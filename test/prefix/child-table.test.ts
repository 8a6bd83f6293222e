// Clients choose tokens, and one table serves all tenants: no choice of tokens may make it slow. Places looked at are counted, not
// time; the attacker knows the function and everything but the cache's seed.

import test from 'ava';

import { ChildTable, KeyedHash, NodeTable } from '#internal/prefix/prefix-tree.js';
import { mix32, Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

const tokenCount = 64_000;
const parent = 0;
/** Places of a table with so many children. */
const places = 2 ** 17;

/** A table whose nodes are children of one parent, and how many places the last finds looked at. */
function tableOf(tokens: readonly number[], hashSeed: number) {
  const nodes = new NodeTable();
  const counter = { probes: 0 };
  const counting = new Map<Int32Array, Int32Array>();
  const counted = {
    get parent(): Int32Array {
      const { parent: array } = nodes;
      const known = counting.get(array);
      if (known !== undefined) return known;
      const proxy = new Proxy(array, {
        get: (target, key) => {
          counter.probes += 1;
          return Reflect.get(target, key) as unknown;
        },
      });
      counting.set(array, proxy);
      return proxy;
    },
    get firstToken(): Int32Array {
      return nodes.firstToken;
    },
  };
  const table = new ChildTable(counted as NodeTable, hashSeed);
  nodes.make();
  for (const token of tokens) {
    const node = nodes.make();
    nodes.parent[node] = parent;
    nodes.firstToken[node] = token;
    table.add(node);
  }
  return { nodes, table, counter };
}

/** Places that finding each token looks at, on average and at most; ends early when that is hopeless. */
function probesOf(tokens: readonly number[], hashSeed: number): { readonly mean: number; readonly most: number } {
  const { nodes, table, counter } = tableOf(tokens, hashSeed);
  let all = 0;
  let most = 0;
  for (const token of tokens) {
    counter.probes = 0;
    const node = table.find(parent, token);
    if (nodes.firstToken[node] !== token) throw new Error(`token ${token} was not found`);
    all += counter.probes;
    most = Math.max(most, counter.probes);
    if (most > 10_000) break;
  }
  return { mean: all / tokens.length, most };
}

/** The first tokens that a condition holds for. */
function tokensWhere(isWanted: (token: number) => boolean): number[] {
  const tokens: number[] = [];
  for (let token = 0; tokens.length < tokenCount && token < 2 ** 31; token += 1) if (isWanted(token)) tokens.push(token);
  return tokens;
}

const seed = seedOf('child table');
const random = new Random(seed);
const guessed = new KeyedHash(0);

const attacks: Readonly<Record<string, () => number[]>> = {
  'that meet under a hash without a key': () => tokensWhere((token) => (mix32(token, parent) & (places - 1)) < 16),
  'that meet under another seed': () => tokensWhere((token) => (guessed.of(token, parent) & (places - 1)) < 16),
  'one behind the other': () => Array.from({ length: tokenCount }, (_, index) => index),
  'with equal low bits': () => Array.from({ length: tokenCount }, (_, index) => index * 2 ** 15),
  'of a few values of each byte': () =>
    Array.from({ length: 2 ** 16 }, (_, index) => (index & 15) | ((index >> 4) & 15) << 8 | ((index >> 8) & 15) << 16 | (index >> 12) << 24),
  'a power of two apart': () => Array.from({ length: tokenCount }, (_, index) => (index >> 4 << 4) ^ 2 ** (15 + (index & 15))),
};

const usual = probesOf(Array.from({ length: tokenCount }, () => random.integer(2 ** 31)), random.integer(2 ** 48));

for (const [name, choose] of Object.entries(attacks)) {
  slow('64,000 tokens')(`64,000 tokens ${name} are found in at most twice the places that random tokens take (seed ${seed})`, (t) => {
    const tokens = [...new Set(choose())];
    t.true(tokens.length > 50_000);
    const { mean, most } = probesOf(tokens, new Random(seed + tokens[7]!).integer(2 ** 48));
    t.true(mean <= 2 * usual.mean, `${mean} places each, ${usual.mean} with random tokens`);
    t.true(most <= 8 * usual.most, `${most} places at most, ${usual.most} with random tokens`);
  });
}

test(`two tokens do not meet under all seeds, whatever their difference (seed ${seed})`, (t) => {
  for (let bit = 0; bit < 31; bit += 1) {
    let meetings = 0;
    for (let turn = 0; turn < 64; turn += 1) {
      const hash = new KeyedHash(random.integer(2 ** 48));
      const token = random.integer(2 ** 31);
      if (((hash.of(token, 1) ^ hash.of(token ^ (1 << bit), 1)) & 255) === 0) meetings += 1;
    }
    t.true(meetings < 8, `tokens that differ in bit ${bit} meet in ${meetings} of 64`);
  }
});
