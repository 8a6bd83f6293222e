// What surrounds the calls of a cache: whether one may begin (Lifetime, PolicyGuard, checkStack), and what fails when
// it is over (BackgroundErrors).

import diagnostics = require('node:diagnostics_channel');

import { createError } from '../base/errors.js';
import type { NativeMapperState } from './native.js';
import type { WaitOptions } from './wait.js';

// Lifetime: whether a cache can be called. It closes in two stages, so that a close that the driver refuses can be
// called again; and not while an engine's pass computes on its memory, since the device may write there until that is
// over. It knows what serves requests on the cache, so that a shutdown ends these first.

/** What serves requests on a cache, as `KvCache.shutdown` ends it. */
export interface Scheduling {
  /** Ends its requests; resolves when no pass of theirs runs. */
  close(options?: WaitOptions): Promise<void>;
}

export class Lifetime {
  readonly #guard: PolicyGuard;
  #state: 'open' | 'closing' | 'closed' = 'open';
  #passes = 0;
  #isEnding = false;
  /** Held weakly: one that was never closed can be collected. */
  readonly #schedulers = new Set<WeakRef<Scheduling>>();
  readonly #collected = new FinalizationRegistry<WeakRef<Scheduling>>((each) => { this.#schedulers.delete(each); });

  constructor(guard: PolicyGuard) {
    this.#guard = guard;
  }

  get isClosed(): boolean {
    return this.#state === 'closed';
  }

  /** Whether a policy decides: until it has, most calls throw KV_POLICY_REENTRY. */
  get isDeciding(): boolean {
    return this.#guard.deciding !== undefined;
  }

  /**
   * Throws KV_CLOSED once it closes, and KV_POLICY_REENTRY while one of its policies decides. `operation` follows
   * "Cannot".
   */
  check(operation: string): void {
    if (this.#state !== 'open') throw createError('KV_CLOSED', { operation, owner: 'KvCache' });
    if (this.isDeciding) this.#guard.check(operation);
  }

  /**
   * The same before a call that changes how slots, rows and text belong together. Throws the RangeError of a full
   * stack, too.
   */
  enter(operation: string): void {
    checkStack();
    this.check(operation);
  }

  /** The same for what begins something: also while the cache shuts down. */
  checkBeginning(operation: string): void {
    if (this.#isEnding) throw createError('KV_CLOSED', { operation, owner: 'KvCache' });
    this.enter(operation);
  }

  /** From now on nothing begins; what is under way goes on. */
  beginShutdown(): void {
    this.#isEnding = true;
  }

  /** Something serves requests on the cache from now on. */
  serves(scheduler: Scheduling): void {
    const each = new WeakRef(scheduler);
    this.#schedulers.add(each);
    this.#collected.register(scheduler, each); // asking them all would keep them alive
  }

  /** All that serve requests, closed ones too. */
  get schedulers(): readonly Scheduling[] {
    return [...this.#schedulers].flatMap((each) => each.deref() ?? []);
  }

  /** A pass of a scheduler's engine begins. Returns what ends it. */
  enterPass(): () => void {
    this.#passes += 1;
    return () => {
      this.#passes -= 1;
    };
  }

  /**
   * The cache begins to close, or goes on; true the first time. Throws KV_POLICY_REENTRY, and KV_DRIVER_IN_USE while a
   * pass runs.
   */
  beginClose(): boolean {
    this.#guard.check('close the cache');
    if (this.#passes > 0) throw createError('KV_DRIVER_IN_USE', { owner: 'KvCache', users: this.#passes });
    const isFirst = this.#state === 'open';
    this.#state = 'closing';
    return isFirst;
  }

  endClose(): void {
    this.#state = 'closed';
  }
}

// PolicyGuard: refuses calls to the caches of a page pool while a policy decides, because a cache is then in the middle
// of a call and half changed. One per page pool, since caches of a pool take rows from each other.

/** The option that the policy is the value of. */
export type PolicyName = 'growth' | 'prefixCache.policy' | 'prefixCache.now';

type Callable = (...parameters: never[]) => unknown;

export class PolicyGuard {
  /** The policy that decides at this moment. Read only. */
  deciding: PolicyName | undefined;

  /** Throws KV_POLICY_REENTRY while a policy decides. `operation` follows "Cannot". */
  check(operation: string): void {
    if (this.deciding !== undefined) throw createError('KV_POLICY_REENTRY', { operation, policy: this.deciding });
  }

  /** Marks the policy as deciding until `leave`, which takes the returned value. */
  enter(policy: PolicyName): PolicyName | undefined {
    const outer = this.deciding;
    this.deciding = policy;
    return outer;
  }

  leave(outer: PolicyName | undefined): void {
    this.deciding = outer;
  }

  /** Calls `work` with the policy marked as deciding; returns its result. */
  during<T>(policy: PolicyName, work: () => T): T {
    const outer = this.enter(policy);
    try {
      return work();
    } finally {
      this.leave(outer);
    }
  }

  /** Returns the policy, wrapped so that `check` throws while it decides. */
  wrap<P extends Callable>(name: PolicyName, policy: P): P {
    return ((...parameters: Parameters<P>) => this.during(name, () => policy(...parameters))) as P;
  }
}

// Whether the stack has room for a call that must not end in its middle. Arguments lie on the stack, and V8 looks
// whether they have room before it puts them there: a call of nothing, with many, asks without a change.

/**
 * Bytes that a public call needs at most, where none of its functions is compiled yet. Functions of its user's that it
 * calls see to themselves.
 */
const callBytes = 32_768;
/** The same of a step that maps, copies and retires nothing. */
const stepBytes = 2048;

const callRoom: readonly number[] = new Array<number>(callBytes / 8).fill(0);
const stepRoom: readonly number[] = new Array<number>(stepBytes / 8).fill(0);

function useNothing(): void { /* its arguments have had room */ }

/**
 * Before a call changes anything: throws the RangeError of a full stack where it might come in the middle of the
 * change, and leave counts wrong.
 */
export function checkStack(): void {
  Reflect.apply(useNothing, undefined, callRoom);
}

/** The same for the hot path: a sixteenth of the room, and of the time. */
export function checkStackOfStep(): void {
  Reflect.apply(useNothing, undefined, stepRoom);
}

// BackgroundErrors: failures that no call could report, because the call they belong to was over (a fence asked for
// after a commit, rows taken back after a release) or there was none (the mapper). Each is counted and published on the
// diagnostics channel `virtual-kv:late-error` as { cache, error, lateErrors }, once the running JavaScript has finished
// (in a microtask), so that a subscriber may use the cache; what failed is tried again when there is reason to.

const channel = diagnostics.channel('virtual-kv:late-error');

export class BackgroundErrors {
  readonly #cache: object;
  #ofMappers = 0;
  #own = 0;

  constructor(cache: object) {
    this.#cache = cache;
  }

  /** All so far, as far as this thread has heard from the mapper. */
  get count(): number {
    return this.#own + this.#ofMappers;
  }

  /** Does what follows a call that is done already: a failure of it is late. */
  attempt(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.report(error);
    }
  }

  /** A failure that the call in which it was found does not share. */
  report(error: unknown): void {
    this.#own += 1;
    this.#publish(error);
  }

  /** A mapper has failed since it had met `before` failures; of several the last one is published. */
  addOfMapper({ lateErrors, lastError }: NativeMapperState, before: number): void {
    this.#ofMappers += lateErrors - before;
    this.#publish(lastError);
  }

  #publish(error: unknown): void {
    if (!channel.hasSubscribers) return;
    const message = { cache: this.#cache, error, lateErrors: this.count };
    queueMicrotask(() => {
      channel.publish(message);
    });
  }
}
