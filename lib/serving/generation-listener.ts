// GenerationListener: what follows a request: the batching loop tells it what becomes of it.

import type { Sequence } from '../cache/sequence.js';
import type { GenerationResult } from './generation-result.js';

/** What follows a request. Called by the batching loop between passes; must not throw. */
export interface GenerationListener {
  /** It has got a slot, for the first time or again. */
  started?(sequence: Sequence): void;
  /** It gives its slot back next; until then its tokens are valid there. */
  leaving?(sequence: Sequence): void;
  token?(token: number): void;
  done(result: GenerationResult): void;
  failed(error: Error): void;
}
