// RequestLife: the one request that a naive run computes: what it does is left at once when its signal or its deadline says so.

import type { Clock } from './clock.js';
import type { Generation } from './generation.js';
import { RequestWatch } from './request-watch.js';

export class RequestLife {
  readonly generation: Generation;
  readonly #watch: RequestWatch;
  /** Rejects when it has ended. */
  readonly #ended: Promise<never>;
  #error: Error | undefined;

  /** `onEnd` is told when it ends so. Throws what the clock throws. */
  constructor(generation: Generation, clock: Clock, onEnd: () => void) {
    let reject: (error: Error) => void;
    this.#ended = new Promise<never>((_, rejectEnded) => { reject = rejectEnded; });
    this.#ended.catch(() => {}); // it may end while nothing waits
    const end = (error: Error): void => {
      this.#error ??= error;
      generation.hasEnded = true;
      reject(error);
      onEnd();
    };
    this.generation = generation;
    this.#watch = new RequestWatch({ clock, onOver: (_, error) => { end(error); }, onFailure: end });
    this.#watch.add(generation);
  }

  /** Throws the error that it has ended with. */
  check(): void {
    this.#watch.check();
    if (this.#error !== undefined) throw this.#error;
  }

  /** As `work`, which may go on when this rejects. */
  orEnded<T>(work: Promise<T>): Promise<T> {
    work.catch(() => {});
    return Promise.race([work, this.#ended]);
  }

  close(): void {
    this.#watch.close();
    this.generation.hasEnded = true;
  }
}
