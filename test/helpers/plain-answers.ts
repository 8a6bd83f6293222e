// PlainAnswers: what a model says behind any text, computed without a cache; remembered, so that a text and all its beginnings
// cost one computation.

import type { MadeLlama } from './made-llama.js';
import { PlainLlama } from './plain-llama.js';

interface Place {
  logits: Float64Array | undefined;
  readonly next: Map<number, Place>;
}

export class PlainAnswers {
  readonly #plain: PlainLlama;
  readonly #start: Place = { logits: undefined, next: new Map() };

  constructor(made: MadeLlama) {
    this.#plain = new PlainLlama(made);
  }

  /** Logits behind the last token of a text. Ask for the longest first. */
  behind(text: readonly number[]): Float64Array {
    const places: Place[] = [];
    let place = this.#start;
    for (const token of text) {
      if (!place.next.has(token)) place.next.set(token, { logits: undefined, next: new Map() });
      place = place.next.get(token)!;
      places.push(place);
    }
    if (place.logits === undefined) this.#plain.logits(text).forEach((logits, at) => { places[at]!.logits ??= logits; });
    return place.logits!;
  }
}
