// StoredBlocks against a match: seeded random operations, after which a router that has applied the reported changes, and has seen
// nothing else, must know of every text exactly the whole blocks that a match finds.

import {
  prefixDomain, PrefixIndex, rowArithmetic, type PrefixDomain, type PrefixIndexOptions, type PrefixPath, type RowArithmetic,
} from '#internal/prefix/index.js';
import { blockKeys, formatBlockKey } from '#internal/prefix/router/block-keys.js';
import { StoredBlocks } from '#internal/prefix/router/stored-blocks.js';
import { Random } from '#internal/base/random.js';
import { seedOf } from '../../helpers/seed.js';
import { slow } from '../../runner/slow.js';
import { scale } from '../../runner/tier.js';

/** What a router knows: it has seen the reported changes and nothing else. */
class Replica {
  readonly keys = new Set<string>();
  readonly #blocks: StoredBlocks;

  constructor(blocks: StoredBlocks) {
    this.#blocks = blocks;
  }

  /** Applies what has changed; throws when it does not fit what was reported before. */
  update(): void {
    const { removed, stored } = this.#blocks.takeChanges();
    for (const { keys } of removed) {
      for (const key of keys) if (!this.keys.delete(formatBlockKey(key))) throw new Error('a block is removed that was not stored');
    }
    for (const { parent, keys } of stored) {
      if (parent !== undefined && !this.keys.has(formatBlockKey(parent))) throw new Error('a block is stored before its parent');
      for (const key of keys) {
        const name = formatBlockKey(key);
        if (this.keys.has(name)) throw new Error('a block is stored twice');
        this.keys.add(name);
      }
    }
  }

  /** Tokens of a text in leading blocks that it knows to be stored. */
  cachedTokens(domain: PrefixDomain, text: Int32Array): number {
    const { blockTokens } = this.#blocks;
    const names = blockKeys(domain, text, blockTokens).map(formatBlockKey);
    const missing = names.findIndex((name) => !this.keys.has(name));
    return (missing < 0 ? names.length : missing) * blockTokens;
  }
}

interface Running {
  readonly domain: PrefixDomain;
  readonly path: PrefixPath;
  text: Int32Array;
}

const domains = [prefixDomain(), prefixDomain({ tenant: 'a' }), prefixDomain({ tenant: 'a', salt: 's' }), prefixDomain({ adapter: 'a' })];

/** Sequences over rows that only have numbers; as in a cache, a sequence names its own rows when it commits, not before. */
class World {
  readonly index: PrefixIndex;
  readonly blocks: StoredBlocks;
  readonly replica: Replica;
  readonly #random: Random;
  readonly #arithmetic: RowArithmetic;
  readonly #maxTokens: number;
  readonly #texts: Int32Array[] = [];
  readonly #running: Running[] = [];
  #rows = 0;

  constructor(random: Random, arithmetic: RowArithmetic, maxTokens: number, blockTokens: number, options: Partial<PrefixIndexOptions>) {
    this.#random = random;
    this.#arithmetic = arithmetic;
    this.#maxTokens = maxTokens;
    this.index = new PrefixIndex({ arithmetic, ...options });
    this.blocks = new StoredBlocks(this.index, { blockTokens });
    this.replica = new Replica(this.blocks);
  }

  /** One random operation. */
  step(): void {
    const random = this.#random;
    const dice = random.integer(100);
    const running = this.#running[random.integer(this.#running.length)];
    if (dice < 22 && this.#running.length < 8) this.#acquire();
    else if (dice < 60 && running !== undefined) this.#commit(running);
    else if (dice < 68 && running !== undefined) this.index.truncate(running.path, random.integer(running.path.length + 1));
    else if (dice < 72 && running !== undefined && this.#running.length < 8) this.#fork(running);
    else if (dice < 86 && running !== undefined) this.#release(running);
    else if (dice < 96) this.index.evict(1 + random.integer(4));
    else if (dice < 98) this.index.clear(random.chance(0.5) ? undefined : domains[random.integer(domains.length)]);
    this.index.dropped.clear();
  }

  /** The replica knows of texts what a match finds. */
  check(): void {
    const { blockTokens } = this.blocks;
    const asked = [...this.#running.map(({ domain, text }) => [domain, text] as const)];
    for (let times = 0; times < 4; times += 1) asked.push([domains[this.#random.integer(domains.length)]!, this.#text()]);
    for (const [domain, text] of asked) {
      const { tokens } = this.index.match(domain, text, text.length);
      const known = this.replica.cachedTokens(domain, text);
      if (known !== tokens - (tokens % blockTokens)) throw new Error(`${tokens} tokens are cached, the replica says ${known}`);
    }
    if (this.replica.keys.size !== this.blocks.count) throw new Error('the count of blocks is wrong');
  }

  end(): void {
    for (const running of [...this.#running]) this.#release(running);
    this.index.clear();
    this.index.dropped.clear();
  }

  /** Texts that often begin alike. */
  #text(): Int32Array {
    const random = this.#random;
    const length = 1 + random.integer(this.#maxTokens);
    const base = this.#texts[random.integer(this.#texts.length)];
    const text = Int32Array.from({ length }, () => random.integer(3));
    if (base !== undefined) text.set(base.subarray(0, Math.min(length, random.integer(base.length + 1))));
    if (this.#texts.length < 40) this.#texts.push(text);
    else this.#texts[random.integer(40)] = text;
    return text;
  }

  #acquire(): void {
    const domain = domains[this.#random.integer(domains.length)]!;
    const text = this.#text();
    const rows = new Int32Array(this.#arithmetic.rowsFor(4 * this.#maxTokens)).fill(-1);
    const path = this.index.open(this.index.match(domain, text, text.length - 1), { rows, isStored: this.#random.chance(0.8), level: 0 });
    this.#running.push({ domain, path, text });
  }

  #commit(running: Running): void {
    const { path } = running;
    const room = 3 * this.#maxTokens;
    if (path.length >= running.text.length && running.text.length < room) {
      const more = Int32Array.from({ length: 1 + this.#random.integer(5) }, () => this.#random.integer(3));
      running.text = Int32Array.of(...running.text.subarray(0, path.length), ...more);
    }
    const length = path.length + 1 + this.#random.integer(running.text.length - path.length);
    if (length > running.text.length) return;
    for (let index = this.#arithmetic.wholeRows(path.length); index < this.#arithmetic.rowsFor(length); index += 1) {
      if (path.rows[index]! >= 0 && this.index.isWritable(path, index)) continue;
      path.rows[index] = this.#rows;
      this.#rows += 1;
    }
    this.index.commit(path, running.text, length);
  }

  #fork({ domain, path, text }: Running): void {
    const rows = new Int32Array(path.rows.length).fill(-1);
    this.#running.push({ domain, path: this.index.fork(path, rows), text: text.slice() });
  }

  #release(running: Running): void {
    this.index.release(running.path);
    this.#running.splice(this.#running.indexOf(running), 1);
  }
}

const shapes = [
  { name: '1 token', tokenBytes: 1, pageBytes: 1, maxTokens: 24 },
  { name: '3.2 tokens', tokenBytes: 5, pageBytes: 16, maxTokens: 40 },
  { name: 'less than half a token', tokenBytes: 5, pageBytes: 2, maxTokens: 20 },
  { name: '16 tokens', tokenBytes: 1, pageBytes: 16, maxTokens: 80 },
  { name: '64 tokens', tokenBytes: 1, pageBytes: 64, maxTokens: 200 },
];

for (const { name, tokenBytes, pageBytes, maxTokens } of shapes) {
  for (const blockTokens of [1, 4, 7, 16]) {
    for (const options of [{}, { poolRows: 8 }]) {
      const title = `rows of ${name}, blocks of ${blockTokens}${options.poolRows === undefined ? '' : ', a pool of 8 rows'}`;
      const seed = seedOf(title);
      slow('a random world of small blocks')(`${title}: the reported changes alone say what a match finds (seed ${seed})`, (t) => {
        const world = new World(new Random(seed), rowArithmetic({ tokenBytes, pageBytes }), maxTokens, blockTokens, options);
        t.notThrows(() => {
          for (let step = 0; step < 1500 * scale; step += 1) {
            world.step();
            if (step % 3 !== 0) continue; // several changes are reported together
            world.replica.update();
            world.check();
            if (step % 30 === 0) world.index.verify();
          }
        });
        world.end();
        world.replica.update();
        t.is(world.replica.keys.size, 0, 'nothing is left');
      });
    }
  }
}
