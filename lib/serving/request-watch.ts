// RequestWatch: ends requests when their signal is aborted or their deadline passes, also in the middle of a step. It
// listens to each signal once and sets one alarm, for the first deadline; it searches no list.

import type { Generation } from './generation.js';
import { Heap } from '../base/heap.js';
import type { Clock } from './scheduler-options.js';

export interface RequestWatchOptions {
  readonly clock: Clock;
  /** Told of a request that was aborted or is too late, and is not watched any more. */
  readonly onOver: (generation: Generation, error: Error) => void;
  /** Told what the clock's functions threw in an alarm. */
  readonly onFailure: (error: Error) => void;
}

interface Listening {
  readonly generations: Set<Generation>;
  readonly stop: () => void;
}

export class RequestWatch {
  readonly #options: RequestWatchOptions;
  readonly #bySignal = new Map<AbortSignal, Listening>();
  readonly #deadlines = new Heap<Generation>((a, b) => a.deadlineAtMs - b.deadlineAtMs, (generation, index) => {
    generation.deadlineIndex = index;
  });
  #alarmAtMs = Infinity;
  #cancelAlarm = (): void => {};

  constructor(options: RequestWatchOptions) {
    this.#options = options;
  }

  /**
   * Watches a request; ends it at once where its signal is aborted already. Throws what the clock throws, and does not
   * watch it then.
   */
  add(generation: Generation): void {
    const { signal } = generation.request;
    try {
      if (generation.deadlineAtMs < Infinity) {
        this.#deadlines.push(generation);
        this.#setAlarm();
      }
      if (signal === undefined) return;
      this.#listeningTo(signal).generations.add(generation);
    } catch (error) {
      this.remove(generation);
      throw error;
    }
    if (signal.aborted) this.#endAborted(signal);
  }

  remove(generation: Generation): void {
    const { signal } = generation.request;
    if (generation.deadlineIndex >= 0) {
      this.#deadlines.remove(generation.deadlineIndex);
      generation.deadlineIndex = -1;
      if (this.#deadlines.length === 0) this.#stopAlarm();
    }
    const listening = signal === undefined ? undefined : this.#bySignal.get(signal);
    if (listening === undefined) return;
    listening.generations.delete(generation);
    if (listening.generations.size > 0) return;
    listening.stop();
    this.#bySignal.delete(signal!);
  }

  /** Ends requests whose deadline has passed. Throws what the clock throws. */
  check(): void {
    if (this.#deadlines.length === 0) return;
    const nowMs = this.#options.clock.now();
    for (let first = this.#deadlines.first; first !== undefined && first.deadlineAtMs <= nowMs;
        first = this.#deadlines.first) {
      this.#end(first, first.lateError());
    }
  }

  #listeningTo(signal: AbortSignal): Listening {
    const known = this.#bySignal.get(signal);
    if (known !== undefined) return known;
    const listener = (): void => {
      this.#endAborted(signal);
    };
    signal.addEventListener('abort', listener);
    const listening =
      { generations: new Set<Generation>(), stop: () => { signal.removeEventListener('abort', listener); } };
    this.#bySignal.set(signal, listening);
    return listening;
  }

  #endAborted(signal: AbortSignal): void {
    for (const generation of this.#bySignal.get(signal)?.generations ?? []) {
      this.#end(generation, generation.abortError(signal.reason));
    }
  }

  #end(generation: Generation, error: Error): void {
    this.remove(generation);
    this.#options.onOver(generation, error);
  }

  /** Sets the alarm for the first deadline, unless one is set that rings before it. */
  #setAlarm(): void {
    const { first } = this.#deadlines;
    if (first === undefined || first.deadlineAtMs >= this.#alarmAtMs) return;
    const { clock } = this.#options;
    this.#stopAlarm();
    const delayMs = first.deadlineAtMs - clock.now();
    this.#cancelAlarm = clock.after(() => {
      this.#ring();
    }, Math.max(1, delayMs));
    this.#alarmAtMs = first.deadlineAtMs;
  }

  #ring(): void {
    this.#alarmAtMs = Infinity;
    try {
      this.check();
      this.#setAlarm();
    } catch (error) {
      this.#options.onFailure(error as Error);
    }
  }

  #stopAlarm(): void {
    const cancel = this.#cancelAlarm;
    this.#cancelAlarm = (): void => {};
    this.#alarmAtMs = Infinity;
    cancel();
  }
}
