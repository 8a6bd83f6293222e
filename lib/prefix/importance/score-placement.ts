// ScorePlacement: which extents of stored text the device has, which host memory has, and which only the disk, by score: the number of their
// important tokens × how often they were accessed. Two heaps, each with the lowest score on top. The disk keeps all, so what leaves a
// place is dropped and nothing is written. Decides only; what moves is the caller's. Pure.

import { ScoreHeap } from './score-heap.js';

/** Where an extent is; the disk has all. */
export type ExtentPlace = 'device' | 'host' | 'disk';

/** What an access changed: copies to be made, from wherever the extent was, and copies to be dropped. */
export interface PlacementChange {
  readonly extent: number;
  readonly from: ExtentPlace;
  readonly to: ExtentPlace;
}

/** Options of `ScorePlacement`. */
export interface ScorePlacementOptions {
  /** Tokens that there is room for on the device. */
  readonly deviceTokens: number;
  /** Tokens that there is room for in host memory. */
  readonly hostTokens: number;
  /** Accesses, of all extents together, after which those so far count half. Default 65,536. */
  readonly halfLifeAccesses?: number;
}

interface Extent {
  readonly tokens: number;
  importantTokens: number;
  accesses: number;
  place: ExtentPlace;
}

const scoreOf = ({ importantTokens, accesses }: Extent): number => importantTokens * accesses;

export class ScorePlacement {
  readonly #extents = new Map<number, Extent>();
  readonly #heaps = { device: new ScoreHeap(), host: new ScoreHeap() };
  readonly #left: { device: number; host: number };

  readonly #halfLifeAccesses: number;
  /** Accesses since the last halving. */
  #agedBefore = 0;

  constructor({ deviceTokens, hostTokens, halfLifeAccesses = 2 ** 16 }: ScorePlacementOptions) {
    this.#left = { device: deviceTokens, host: hostTokens };
    this.#halfLifeAccesses = halfLifeAccesses;
  }

  /** Where it is; undefined: unknown. */
  placeOf(extent: number): ExtentPlace | undefined {
    return this.#extents.get(extent)?.place;
  }

  /** Important tokens × accesses; 0 of one that is unknown. */
  scoreOf(extent: number): number {
    const known = this.#extents.get(extent);
    return known === undefined ? 0 : scoreOf(known);
  }

  /**
   * An extent of so many tokens was accessed; its number of important tokens is what it is now. Returns what moves: it goes up where there is
   * room, or where what has a lower score makes room; what it displaces goes one place down, by the same rule.
   */
  access(extent: number, tokens: number, importantTokens: number): PlacementChange[] {
    const before = new Map<number, ExtentPlace>([[extent, this.placeOf(extent) ?? 'disk']]);
    if (this.#extents.get(extent)?.tokens !== tokens) this.forget(extent);
    const accessed: Extent = this.#extents.get(extent) ?? { tokens, importantTokens, accesses: 0, place: 'disk' };
    this.#extents.set(extent, accessed);
    accessed.accesses += 1;
    accessed.importantTokens = importantTokens;
    if (accessed.place !== 'disk') this.#heaps[accessed.place].set(extent, scoreOf(accessed));
    if (accessed.place !== 'device' && !this.#enter('device', extent, before) && accessed.place === 'disk') this.#enter('host', extent, before);
    this.#age();
    return [...before].flatMap(([moved, from]) => {
      const to = this.#extents.get(moved)!.place;
      return to === from ? [] : [{ extent: moved, from, to }];
    });
  }

  /** Drops an extent from all places. */
  forget(extent: number): void {
    const known = this.#extents.get(extent);
    if (known === undefined) return;
    this.#leave(extent, known);
    this.#extents.delete(extent);
  }

  #leave(extent: number, known: Extent): void {
    if (known.place === 'disk') return;
    this.#heaps[known.place].delete(extent);
    this.#left[known.place] += known.tokens;
    known.place = 'disk';
  }

  /** Halves all counts from time to time, so that what was read much long ago gives way. Their order stays. */
  #age(): void {
    this.#agedBefore += 1;
    if (this.#agedBefore < this.#halfLifeAccesses) return;
    this.#agedBefore = 0;
    for (const [extent, known] of this.#extents) {
      known.accesses /= 2;
      if (known.place !== 'disk') this.#heaps[known.place].set(extent, scoreOf(known));
    }
  }

  /** Puts an extent into a place if room can be made by what scores less there. False: it stays where it is. */
  #enter(place: 'device' | 'host', extent: number, before: Map<number, ExtentPlace>): boolean {
    const entering = this.#extents.get(extent)!;
    const heap = this.#heaps[place];
    const displaced: number[] = [];
    let room = this.#left[place];
    while (room < entering.tokens && heap.top !== undefined && heap.scoreOf(heap.top)! < scoreOf(entering)) {
      const top = heap.top;
      room += this.#extents.get(top)!.tokens;
      heap.delete(top);
      displaced.push(top);
    }
    for (const top of displaced) heap.set(top, this.scoreOf(top));
    if (room < entering.tokens) return false;
    for (const top of displaced) {
      if (!before.has(top)) before.set(top, place);
      this.#leave(top, this.#extents.get(top)!);
    }
    this.#leave(extent, entering);
    entering.place = place;
    this.#left[place] -= entering.tokens;
    heap.set(extent, scoreOf(entering));
    if (place === 'device') for (const top of displaced) this.#enter('host', top, before);
    return true;
  }
}
