// SimulatedOwner: stands in for the memory layer under a PrefixIndex. Rows are arrays of units, each of which remembers
// which token after which prefix was written there, so that a row that is shared, copied or kept wrongly shows. It follows
// the contract at the top of prefix-index.ts and checks it with every call.

import {
  prefixDomain, PrefixIndex, rowArithmetic,
  type PrefixDomain, type PrefixIndexOptions, type PrefixHit, type PrefixPath, type RowArithmetic,
} from '#internal/prefix/index.js';
import type { TextScope } from '#internal/prefix/domain.js';

export interface SimulatedSequence {
  readonly domain: PrefixDomain;
  readonly path: PrefixPath;
  readonly rows: Int32Array;
  /** Its whole text; the tokens before `computed` have been written into rows. */
  text: Int32Array;
  computed: number;
  /** A row of its own that the index has not been told of. */
  unnamed?: { readonly index: number; readonly row: number } | undefined;
  /** What it announced, until all of it is committed. */
  announced?: Int32Array | undefined;
}

export interface OwnerOptions extends Omit<PrefixIndexOptions, 'arithmetic'> {
  readonly tokenUnits: number;
  readonly rowUnits: number;
  /** The copy of a tail row is put into `path.rows` only before the sequence does something with it. */
  readonly namesLate?: boolean;
}

export class SimulatedOwner {
  readonly index: PrefixIndex;
  readonly arithmetic: RowArithmetic;
  readonly sequences: SimulatedSequence[] = [];
  readonly #tokenUnits: number;
  readonly #rowUnits: number;
  readonly #namesLate: boolean;
  readonly #content: Float64Array[] = [];
  readonly #mapped: number[] = [];
  readonly #free: number[] = [];
  /** Numbers of the prefixes that were ever asked about, by the number of the shorter prefix and the token. */
  readonly #prefixes = new Map<string, number>();
  /** Prefixes that a stored path has committed. */
  readonly #committed = new Set<number>();
  readonly #drops: { row: number; reason: string }[] = [];

  constructor({ tokenUnits, rowUnits, namesLate = false, ...options }: OwnerOptions) {
    this.#namesLate = namesLate;
    this.#tokenUnits = tokenUnits;
    this.#rowUnits = rowUnits;
    this.arithmetic = rowArithmetic({ tokenBytes: tokenUnits, pageBytes: rowUnits });
    this.index = new PrefixIndex({ ...options, arithmetic: this.arithmetic });
  }

  /** Reasons of the drops since the last call, one per row. */
  takeDrops(): { row: number; reason: string }[] {
    return this.#drops.splice(0);
  }

  /** Rows that exist and are neither mapped nor held. */
  get freeRows(): number {
    return this.#free.length;
  }

  get rows(): number {
    return this.#content.length;
  }

  acquire(
    text: Int32Array, { domain = prefixDomain(), limit = text.length, isStored = true, level = 0, isAnnounced = false } = {},
  ): SimulatedSequence {
    const hit = this.index.match(domain, text, limit);
    const { tokens, wholeRows, tailRow } = hit;
    const table = new Int32Array(this.arithmetic.rowsFor(4 * text.length + 256)).fill(-1);
    hit.fill(table);
    this.#checkHit(domain, text, hit, table, limit);
    const rows = new Int32Array(table.length).fill(-1);
    const path = this.index.open(hit, { rows, isStored, level, announced: isAnnounced ? text.slice() : undefined });
    equal(path.length, tokens, 'a path starts with what the match found');
    for (let index = 0; index < wholeRows; index += 1) {
      equal(rows[index]!, table[index]!, 'a path starts with the rows that fill wrote');
      this.#map(rows[index]!);
    }
    const announced = isAnnounced && tokens < text.length ? text.slice() : undefined;
    const sequence = { domain, path, rows, text, computed: tokens, announced };
    if (tailRow >= 0) this.#copyTail(sequence, tailRow, tokens);
    this.sequences.push(sequence);
    this.#settle();
    return sequence;
  }

  fork(parent: SimulatedSequence): SimulatedSequence {
    this.#name(parent);
    const rows = new Int32Array(parent.rows.length).fill(-1);
    const path = this.index.fork(parent.path, rows);
    const sequence = { domain: parent.domain, path, rows, text: parent.text, computed: path.length };
    const whole = this.arithmetic.wholeRows(path.length);
    for (let index = 0; index < whole; index += 1) this.#map(rows[index]!);
    if (this.arithmetic.rowsFor(path.length) > whole) this.#copyTail(sequence, parent.rows[whole]!, path.length);
    this.#checkSequence(sequence);
    this.sequences.push(sequence);
    this.#settle();
    return sequence;
  }

  /** Computes and commits the text up to `length`. */
  commit(sequence: SimulatedSequence, length: number): void {
    this.#name(sequence);
    const { path, rows } = sequence;
    const from = sequence.computed;
    for (let index = this.arithmetic.wholeRows(from); index < this.arithmetic.rowsFor(length); index += 1) {
      const row = rows[index]!;
      if (row >= 0 && this.#mapped[row] === 1 && this.index.isWritable(path, index)) continue;
      rows[index] = this.#take();
      if (row < 0) continue;
      this.#content[rows[index]!]!.set(this.#content[row]!);
      this.#unmap(row);
    }
    const prefixes = this.#prefixesOf(sequence.domain, sequence.text, length);
    for (let unit = from * this.#tokenUnits; unit < length * this.#tokenUnits; unit += 1) {
      const row = rows[Math.floor(unit / this.#rowUnits)]!;
      this.#content[row]![unit % this.#rowUnits] = prefixes[Math.floor(unit / this.#tokenUnits)]!;
    }
    sequence.computed = length;
    this.index.commit(path, sequence.text, length);
    if (sequence.announced !== undefined && path.length >= sequence.announced.length) sequence.announced = undefined;
    if (path.isStored) for (const prefix of prefixes) this.#committed.add(prefix);
    this.#settle();
  }

  /** Keeps a value that says which text it belongs to at the end of what the sequence has committed. */
  keepValue({ domain, path, text }: SimulatedSequence): boolean {
    return this.index.keepValue(path, this.#prefixesOf(domain, text, path.length).at(-1));
  }

  truncate(sequence: SimulatedSequence, length: number): void {
    this.#name(sequence);
    this.index.truncate(sequence.path, Math.min(length, sequence.path.length));
    sequence.computed = length;
    sequence.announced = undefined;
    this.#settle();
  }

  release(sequence: SimulatedSequence): void {
    this.index.release(sequence.path);
    this.#end(sequence);
    this.index.settleDuplicates((row) => this.#mapped[row] === 0);
    this.#settle();
  }

  evict(rows: number): number {
    const freed = this.index.evict(rows);
    this.#settle();
    return freed;
  }

  /** Evicts one of the texts that the policy lets go as a whole, and only its own rows; returns how many. */
  evictText(choose: (count: number) => number): number {
    const leaves = new Int32Array(8);
    const count = this.index.victims(leaves);
    const before = this.index.pooledRows;
    if (count > 0) this.index.evictLeaf(leaves[choose(count)]!);
    this.#settle();
    return before - this.index.pooledRows;
  }

  /** For want of memory: what running sequences have twice goes. */
  replaceDuplicates(): void {
    for (const sequence of this.sequences) this.#name(sequence);
    this.index.replaceDuplicates((row) => this.#mapped[row] === 0);
    this.#settle();
  }

  clear(domain?: PrefixDomain): number {
    const freed = this.index.clear(domain);
    this.#settle();
    return freed;
  }

  /** Drops text. Sequences that have some of it say nothing of it from here on: here they are over. */
  drop(scope: TextScope): void {
    for (const sequence of this.sequences.filter(({ domain, text }) => scope.covers(domain, text))) {
      this.index.leave(sequence.path);
      this.#end(sequence);
    }
    this.index.drop(scope);
    this.#settle();
  }

  /** Tokens of the text that are cached, their rows verified. */
  cached(text: Int32Array, domain = prefixDomain()): number {
    const hit = this.index.match(domain, text, text.length);
    const table = new Int32Array(hit.wholeRows);
    hit.fill(table);
    this.#checkHit(domain, text, hit, table);
    return hit.tokens;
  }

  /** Asks all there is to ask about a text, and checks the answers against each other and the past. */
  examine(text: Int32Array, domain = prefixDomain()): void {
    const tokens = this.cached(text, domain);
    const { match, ...explanation } = { match: tokens, ...this.index.explain(domain, text) };
    equal(explanation.tokens, match, 'an explanation is about the match');
    equal(explanation.reason === 'complete' ? 1 : 0, tokens === text.length ? 1 : 0, 'complete exactly when all is cached');
    if (explanation.reason === 'evicted' && this.everCommitted(text, domain) <= tokens) throw new Error('evicted and never there');
    if (explanation.reason === 'differs') {
      equal(explanation.askedToken, text[tokens]!, 'the token asked for');
      const cached = text.slice(0, tokens + 1).fill(explanation.cachedToken, tokens);
      equal(this.everCommitted(cached, domain), tokens + 1, 'tokens of a text that went on otherwise');
    }
    if (explanation.reason === 'other-domain' && explanation.otherTokens <= tokens) throw new Error('another domain has no more');
    const value = this.index.match(domain, text).value;
    if (value !== undefined) {
      equal(tokens, text.length, 'a value only where all is cached');
      equal(value as number, this.#prefixesOf(domain, text, tokens).at(-1)!, 'the value of this text');
    }
  }

  /** Tokens of the text that were ever committed. */
  everCommitted(text: Int32Array, domain = prefixDomain()): number {
    const prefixes = this.#prefixesOf(domain, text, text.length);
    const missing = prefixes.findIndex((prefix) => !this.#committed.has(prefix));
    return missing < 0 ? text.length : missing;
  }

  /** Everything that must hold whatever has happened. */
  verify(): void {
    this.index.verify();
    let held = 0;
    for (let row = 0; row < this.#content.length; row += 1) if (this.index.isHolding(row)) held += 1;
    equal(held, this.index.heldRows, 'held rows are rows of this owner');
    for (const sequence of this.sequences) {
      const { domain, path, text } = sequence;
      this.#checkSequence(sequence);
      if (!path.isStored) continue;
      const cached = this.cached(text.subarray(0, path.length), domain);
      // Where a longer text ends in a row that the index does not know yet, the tokens after the whole rows are not found.
      const least = this.#namesLate ? this.arithmetic.tokensIn(this.arithmetic.wholeRows(path.length)) : path.length;
      if (cached < least) throw new Error(`of ${path.length} tokens of a running sequence ${cached} are cached`);
    }
  }

  #end(sequence: SimulatedSequence): void {
    this.sequences.splice(this.sequences.indexOf(sequence), 1);
    this.#name(sequence);
    for (const row of sequence.rows) if (row >= 0) this.#unmap(row);
  }

  #checkSequence({ domain, text, computed, rows, unnamed }: SimulatedSequence): void {
    this.#checkRows(domain, text, computed, rows.map((row, index) => (index === unnamed?.index ? unnamed.row : row)));
  }

  #checkHit(domain: PrefixDomain, text: Int32Array, hit: PrefixHit, table: Int32Array, limit = text.length): void {
    const { tokens, wholeRows, tailRow, pendingTokens } = hit;
    equal(pendingTokens, this.#pendingTokens(domain, text.subarray(0, limit), tokens), 'tokens that are announced');
    equal(wholeRows, this.arithmetic.wholeRows(tokens), 'whole rows of a match');
    equal(tailRow >= 0 ? 1 : 0, this.arithmetic.rowsFor(tokens) - wholeRows, 'a tail row exactly when tokens remain');
    if (tokens > this.everCommitted(text, domain)) throw new Error(`${tokens} tokens match that were never committed`);
    const rows = Int32Array.from({ length: wholeRows + 1 }, (_, index) => (index < wholeRows ? table[index]! : tailRow));
    for (const row of rows.subarray(0, wholeRows)) equal(Number(this.index.isHolding(row)), 1, 'a matched row is held');
    this.#checkRows(domain, text, tokens, rows);
  }

  #checkRows(domain: PrefixDomain, text: Int32Array, tokens: number, rows: Int32Array): void {
    const prefixes = this.#prefixesOf(domain, text, tokens);
    for (let unit = 0; unit < tokens * this.#tokenUnits; unit += 1) {
      const row = rows[Math.floor(unit / this.#rowUnits)]!;
      const expected = prefixes[Math.floor(unit / this.#tokenUnits)]!;
      if (this.#content[row]![unit % this.#rowUnits] !== expected) {
        throw new Error(`token ${Math.floor(unit / this.#tokenUnits)} of ${tokens} is not what row ${row} holds`);
      }
    }
  }

  #pendingTokens(domain: PrefixDomain, text: Int32Array, tokens: number): number {
    let most = tokens;
    for (const { path, announced, ...sequence } of this.sequences) {
      if (announced === undefined || !path.isStored || sequence.domain.key !== domain.key) continue;
      const whole = announced.map((token, at) => (at < path.length ? sequence.text[at]! : token));
      const agreed = whole.findIndex((token, at) => token !== text[at]);
      const length = agreed < 0 ? whole.length : agreed;
      if (path.length <= tokens && length >= path.length) most = Math.max(most, length);
    }
    return most > tokens ? most : 0;
  }

  /** Of each token, the number of the prefix that ends with it. */
  #prefixesOf(domain: PrefixDomain, text: Int32Array, length: number): number[] {
    const prefixes: number[] = [];
    let shorter: string | number = domain.key;
    for (let at = 0; at < length; at += 1) {
      const key: string = `${shorter}/${text[at]}`;
      let prefix = this.#prefixes.get(key);
      if (prefix === undefined) {
        prefix = this.#prefixes.size + 1;
        this.#prefixes.set(key, prefix);
      }
      prefixes.push(prefix);
      shorter = prefix;
    }
    return prefixes;
  }

  #copyTail(sequence: SimulatedSequence, from: number, tokens: number): void {
    const index = this.arithmetic.wholeRows(tokens);
    const row = this.#take();
    const units = tokens * this.#tokenUnits - index * this.#rowUnits;
    this.#content[row]!.set(this.#content[from]!.subarray(0, units));
    sequence.unnamed = { index, row };
    if (!this.#namesLate) this.#name(sequence);
  }

  #name(sequence: SimulatedSequence): void {
    const { unnamed } = sequence;
    if (unnamed !== undefined) sequence.rows[unnamed.index] = unnamed.row;
    sequence.unnamed = undefined;
  }

  #take(): number {
    let row = this.#free.pop();
    if (row === undefined) {
      row = this.#content.length;
      this.#content.push(new Float64Array(this.#rowUnits));
      this.#mapped.push(0);
    }
    this.#content[row]!.fill(-1);
    this.#mapped[row] = 1;
    return row;
  }

  #map(row: number): void {
    if (this.#mapped[row] === 0 && !this.index.isHolding(row)) throw new Error(`row ${row} is shared and free`);
    this.#mapped[row]! += 1;
  }

  #unmap(row: number): void {
    this.#mapped[row]! -= 1;
    this.#freeIfUnused(row);
  }

  /** Reads what was dropped. */
  #settle(): void {
    const { dropped } = this.index;
    const rows = new Set<number>();
    for (let index = 0; index < dropped.count; index += 1) {
      this.#drops.push({ row: dropped.row(index), reason: dropped.reason(index) });
      rows.add(dropped.row(index));
    }
    dropped.clear();
    for (const row of rows) this.#freeIfUnused(row);
  }

  #freeIfUnused(row: number): void {
    if (this.#mapped[row] !== 0 || this.index.isHolding(row)) return;
    if (!this.#free.includes(row)) this.#free.push(row);
  }
}

function equal(actual: number, expected: number, what: string): void {
  if (actual !== expected) throw new Error(`${what}: ${actual} instead of ${expected}`);
}
