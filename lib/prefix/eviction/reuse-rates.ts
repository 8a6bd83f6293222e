// ReuseRates: how often cached text is used again, learnt from what was: for each class of text and each age, which is
// the number of releases since its last use, a rate per release; and from those what a row of such text is worth.
// Counts fade, so that it follows a workload that changes. It allocates nothing once it is made, whatever it learns.
//
// Few events have to be enough, so what is known of fewer texts starts from what is known of more. All texts start from
// "the rate is one over the age", where the oldest goes first as in LRU, and their rates never rise with age. Of that,
// each group of classes that have a trait in common has a multiple, at all ages and at each (GroupFactors); the rate of
// a class is the product of those of its groups, and then a multiple of its own, at all ages and at each. Everywhere
// `trust` events weigh as much as what they start from.

// Classes of text: texts that are used again at different rates, as far as an eviction policy can tell. A class is the
// kind of text, by its uses, and two traits of the latest request that used it: how many tokens of its prompt were new,
// and how long its answer was.

/** How a request begins: with nothing that was seen before, where a text ended, or somewhere in a text. */
export const turns = { first: 0, continues: 1, branches: 2 } as const;

export type Turn = (typeof turns)[keyof typeof turns];

/** Tokens from which on the prompt of a request had more new ones, by level. */
const newLimits = [1_024, 3_072, 7_168] as const;
/** Tokens from which on its answer was longer, by level. */
const answerLimits = [32, 128, 512] as const;

/** Of text used once, by the turn that brought it; of text used again: 2, 3–4, 5–8, 9–32 or more uses. */
const kinds = 8;
const newLevels = newLimits.length + 1;
const answerLevels = answerLimits.length + 1;
/** New tokens and length of the answer together. */
const requestClasses = newLevels * answerLevels;

export const textClasses = kinds * requestClasses;

/** The class of the latest request that used a text, 0 … 15. */
export function requestClass(newTokens: number, answerTokens: number): number {
  return levelOf(newTokens, newLimits) * answerLevels + levelOf(answerTokens, answerLimits);
}

/** `uses`: with the present one, at least 1; `turn`: of the request that brought the text. */
export function textClass(uses: number, turn: Turn, ofRequest: number): number {
  return kindOf(uses, turn) * requestClasses + ofRequest;
}

/**
 * What is learnt of many classes together: by kind, by new tokens, by answer, by both. Of each grouping the group of
 * each class.
 */
const classGroupings: readonly Uint8Array[] = [
  groupsBy((ofClass) => Math.floor(ofClass / requestClasses)),
  groupsBy((ofClass) => Math.floor((ofClass % requestClasses) / answerLevels)),
  groupsBy((ofClass) => ofClass % answerLevels),
  groupsBy((ofClass) => ofClass % requestClasses),
];

function groupsBy(groupOf: (ofClass: number) => number): Uint8Array {
  return Uint8Array.from({ length: textClasses }, (_, ofClass) => groupOf(ofClass));
}

function levelOf(tokens: number, [few, some, many]: readonly [number, number, number]): number {
  return tokens < few ? 0 : tokens < some ? 1 : tokens < many ? 2 : 3;
}

function kindOf(uses: number, turn: Turn): number {
  return uses <= 1 ? turn : uses === 2 ? 3 : uses <= 4 ? 4 : uses <= 8 ? 5 : uses <= 32 ? 6 : 7;
}

/** Ages by their power of two: [0, 2), [2, 4), [4, 8) …; the last has no end. */
export const ageBuckets = 14;

const cells = textClasses * ageBuckets;

/**
 * Events that count as much as what is known otherwise: with 4, half a dozen reuses change a rate, and one does not.
 */
const trust = 4;
/**
 * Releases after which a count weighs half: enough for some hundred reuses, few enough to follow the hours of a day.
 */
const halfLife = 512;
/** Releases between two looks at the same counts, a small part of the half-life. Groups and classes take turns. */
const fitEvery = 32;
/** The starting point, by age: one over the middle of the age. */
const unknownRates = Float64Array.from({ length: ageBuckets }, (_, age) => 2 ** -(age + 0.5));
/** Releases that a text stays at an age at most, by age. */
const stays = Float64Array.from({ length: ageBuckets }, (_, age) => 2 ** Math.max(1, age));
/** Below it a rate is as good as none, and sums of reciprocals stay finite. */
const leastRate = 1e-12;

/** Cells by their group: by each grouping of classes, at all ages and at each age. */
const cellGroupings = classGroupings.flatMap((groupOf) => [
  groupCells((ofClass) => groupOf[ofClass]!),
  groupCells((ofClass, age) => groupOf[ofClass]! * ageBuckets + age),
]);

interface CellGrouping {
  /** By cell. */
  readonly groupOf: Uint8Array;
  readonly groups: number;
}

function groupCells(groupOf: (ofClass: number, age: number) => number): CellGrouping {
  const groupsOfCells = Uint8Array.from(
    { length: cells }, (_, at) => groupOf(Math.floor(at / ageBuckets), at % ageBuckets));
  return { groupOf: groupsOfCells, groups: 1 + Math.max(...groupsOfCells) };
}

export class ReuseRates {
  // By class and age.
  readonly #reuses = new Float64Array(cells);
  /** Releases that texts of this class spent at this age, used again or not. */
  readonly #exposure = new Float64Array(cells);
  readonly #values = new Float64Array(cells);
  /** Texts of this class at this age now, and until when their exposure is counted. */
  readonly #present = new Float64Array(cells);
  readonly #countedTo = new Float64Array(cells);
  /** Rates as the groups of a class have them. */
  readonly #rates = new Float64Array(cells);
  readonly #groups = cellGroupings.map((grouping) => new GroupFactors(grouping));
  readonly #ofAll = new AllTexts();
  /** Of one class: its rates by age, and the chances of a reuse at each. */
  readonly #own = new Float64Array(ageBuckets);
  readonly #chances = new Float64Array(ageBuckets);
  #now = 0;

  constructor() {
    for (let start = 0; start < cells; start += ageBuckets) {
      this.#rates.set(unknownRates, start);
      this.#values.set(unknownRates, start);
    }
  }

  /** Time goes on to `now`. */
  moveTo(now: number): void {
    this.#now = now;
    const turns = this.#groups.length;
    const turn = (now % fitEvery) / (fitEvery / turns);
    if (!Number.isInteger(turn)) return;
    if (turn === 0) this.#startAgain();
    this.#groups[turn]!.refine(this.#rates, this.#reuses, this.#exposure);
    for (let start = (turn * cells) / turns; start < ((turn + 1) * cells) / turns; start += ageBuckets) {
      this.#fitClass(start);
    }
  }

  /** Text of a class comes to an age; `weight` is what share of a prompt it is. */
  enter(ofClass: number, age: number, weight: number): void {
    const at = ofClass * ageBuckets + age;
    this.#countExposure(at);
    this.#present[at]! += weight;
  }

  /** Text leaves an age; `isReused`: because it was used again. */
  leave(ofClass: number, age: number, weight: number, isReused: boolean): void {
    const at = ofClass * ageBuckets + age;
    this.#countExposure(at);
    this.#present[at]! -= weight;
    if (isReused) this.#reuses[at]! += weight;
  }

  /**
   * What a row of such text is worth: the most reuses per release that keeping it for some time can be expected to
   * bring.
   */
  value(ofClass: number, age: number): number {
    const place = Math.min(ageBuckets - 1, Math.max(0, Math.log2(Math.max(1, age)) - 0.5));
    const low = Math.min(ageBuckets - 2, Math.floor(place));
    const at = ofClass * ageBuckets + low;
    const value = this.#values[at]! + (place - low) * (this.#values[at + 1]! - this.#values[at]!);
    return value + 1e-9 / (1 + age); // the older of two equal ones goes first
  }

  #countExposure(at: number): void {
    this.#exposure[at]! += this.#present[at]! * (this.#now - this.#countedTo[at]!);
    this.#countedTo[at] = this.#now;
  }

  /** Lets the counts fade, and multiplies the rates anew from those of all texts. */
  #startAgain(): void {
    const reuses = this.#reuses;
    const exposure = this.#exposure;
    const fading = 2 ** (-fitEvery / halfLife);
    for (let at = 0; at < cells; at += 1) {
      this.#countExposure(at);
      exposure[at]! *= fading;
      reuses[at]! *= fading;
    }
    const ofAll = this.#ofAll.fit(reuses, exposure);
    for (let start = 0; start < cells; start += ageBuckets) this.#rates.set(ofAll, start);
    for (const group of this.#groups) group.apply(this.#rates);
  }

  /** The values of one class, from what its groups say and its own counts. */
  #fitClass(start: number): void {
    const own = this.#own;
    let seen = trust;
    let expected = trust;
    for (let at = start; at < start + ageBuckets; at += 1) {
      seen += this.#reuses[at]!;
      expected += this.#exposure[at]! * this.#rates[at]!;
    }
    for (let age = 0; age < ageBuckets; age += 1) {
      const at = start + age;
      const rate = Math.max(leastRate, (this.#rates[at]! * seen) / expected);
      own[age] = (trust + this.#reuses[at]!) / (trust / rate + this.#exposure[at]!);
    }
    this.#writeValues(start);
  }

  /**
   * The value at each age: of all times that the text may be kept, the best ratio of the chance of a reuse to the time
   * in the pool that it takes (the hit density of LHD, Beckmann, Chen and Cidon 2018; a Gittins index). Where rates
   * fall with age it is the rate itself; text that returns after a fixed time is worth more the nearer that time comes.
   */
  #writeValues(start: number): void {
    const rates = this.#own;
    const chances = this.#chances;
    for (let age = 0; age < ageBuckets; age += 1) chances[age] = -Math.expm1(-rates[age]! * stays[age]!);
    for (let age = 0; age < ageBuckets; age += 1) {
      let best = 0;
      let left = 1;
      let hits = 0;
      let time = 0;
      for (let later = age; later < ageBuckets; later += 1) {
        const chance = chances[later]!;
        hits += left * chance;
        time += (left * chance) / rates[later]!;
        left *= 1 - chance;
        best = Math.max(best, hits / time);
      }
      this.#values[start + age] = best;
    }
  }
}

/** The rates of all texts together, by age: not rising, from the starting point and a factor. */
class AllTexts {
  readonly #events = new Float64Array(ageBuckets);
  readonly #times = new Float64Array(ageBuckets);
  readonly #rates = new Float64Array(ageBuckets);
  /** Of the stretch of ages that ends with an age: its first. */
  readonly #from = new Int32Array(ageBuckets);

  /** The result is valid until the next call. */
  fit(reuses: Float64Array, exposure: Float64Array): Float64Array {
    const events = this.#events.fill(trust);
    const times = this.#times.fill(0);
    let seen = trust;
    let expected = trust;
    for (let start = 0; start < cells; start += ageBuckets) {
      for (let age = 0; age < ageBuckets; age += 1) {
        events[age]! += reuses[start + age]!;
        times[age]! += exposure[start + age]!;
      }
    }
    for (let age = 0; age < ageBuckets; age += 1) {
      seen += events[age]! - trust;
      expected += times[age]! * unknownRates[age]!;
    }
    for (let age = 0; age < ageBuckets; age += 1) times[age]! += trust / ((unknownRates[age]! * seen) / expected);
    return this.#notRising();
  }

  /** events ÷ times where that falls with age, and the ratio of the sums over stretches where it would rise. */
  #notRising(): Float64Array {
    const events = this.#events;
    const times = this.#times;
    for (let age = 0; age < ageBuckets; age += 1) {
      let from = age;
      while (from > 0 && events[from - 1]! * times[age]! <= events[age]! * times[from - 1]!) {
        events[age]! += events[from - 1]!;
        times[age]! += times[from - 1]!;
        from = this.#from[from - 1]!;
      }
      this.#from[age] = from;
    }
    for (let age = ageBuckets - 1; age >= 0; age = this.#from[age]! - 1) {
      this.#rates.fill(events[age]! / times[age]!, this.#from[age]!, age + 1);
    }
    return this.#rates;
  }
}

/**
 * How much more often texts of a group of cells (some classes, at one age or at all) are used again than their other
 * groups say. Each `refine` is a step of coordinate ascent to the most likely factors, given the counts and `trust`
 * events that say 1.
 */
class GroupFactors {
  /** By cell. */
  readonly #groupOf: Uint8Array;
  // By group.
  readonly #factors: Float64Array;
  readonly #changes: Float64Array;
  readonly #expected: Float64Array;

  constructor({ groupOf, groups }: CellGrouping) {
    this.#groupOf = groupOf;
    this.#factors = new Float64Array(groups).fill(1);
    this.#changes = new Float64Array(groups);
    this.#expected = new Float64Array(groups);
  }

  /** Multiplies the rates of all cells by their groups' factors. */
  apply(rates: Float64Array): void {
    this.#multiply(rates, this.#factors);
  }

  /** Changes the factors, and with them the rates, by what was counted. */
  refine(rates: Float64Array, reuses: Float64Array, exposure: Float64Array): void {
    const factors = this.#factors;
    const seen = this.#changes.fill(trust);
    const expected = this.#expected.fill(0);
    for (let at = 0; at < cells; at += 1) {
      const group = this.#groupOf[at]!;
      seen[group]! += reuses[at]!;
      expected[group]! += exposure[at]! * rates[at]!;
    }
    for (let group = 0; group < factors.length; group += 1) {
      const factor = seen[group]! / (trust + expected[group]! / factors[group]!);
      this.#changes[group] = factor / factors[group]!;
      factors[group] = factor;
    }
    this.#multiply(rates, this.#changes);
  }

  #multiply(rates: Float64Array, factors: Float64Array): void {
    for (let at = 0; at < cells; at += 1) rates[at]! *= factors[this.#groupOf[at]!]!;
  }
}
