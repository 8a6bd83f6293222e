// RunAheadEngine: an engine that queues the work of a step and commits before it is done. On the simulated device the work is on
// streams that a test completes; with `steps` it is done when the engine completes a step, as threads of its own would do it, on
// any driver. A step writes the new tokens' bytes, made from the text up to each, and reads some tokens: what it finds when it runs
// is checked, so that memory that changed hands under queued work is seen whichever way it went.

import { DeviceMemory, type AcquireOptions, type Fence, type Sequence } from 'virtual-kv';

import { mix32, Random } from '#internal/base/random.js';
import { keysOf } from '../cache/prefix/spoken.js';
import type { CacheBench } from './cache.js';
import { nativeOf } from './native-of.js';

export interface RunAheadOptions {
  /** Fences are step numbers. Default: streams. */
  readonly steps?: boolean;
  /** How many streams. Default 1. */
  readonly streams?: number;
  /** Tokens that each step's work reads and checks of a sequence. Default 3. */
  readonly probes?: number;
  /** The one stream, which the cache was told: fences and requests do not name it. */
  readonly told?: bigint | undefined;
  readonly random?: Random;
}

export interface Running {
  readonly sequence: Sequence;
  /** Which of the engine's streams its work is queued on. */
  readonly lane: number;
  text: number[];
}

interface Probe {
  readonly byte: number;
  readonly expected: number;
  readonly what: string;
}

const mostProbes = 4096;

export class RunAheadEngine {
  readonly streams: readonly bigint[];
  /** The step whose work is queued last. */
  queuedStep = 0;
  readonly #bench: CacheBench;
  readonly #random: Random;
  readonly #isStepped: boolean;
  readonly #isTold: boolean;
  readonly #readTokens: number;
  readonly #running = new Set<Running>();
  /** By step: what it does when it runs. */
  readonly #queued: { readonly step: number; run(): void }[] = [];
  /** What queued work has read; streams only. */
  readonly #found: DeviceMemory | undefined;
  /** By tensor: the first token that the next one of so many sees. */
  readonly #firstSeen: readonly ((length: number) => number)[];
  #probes: Probe[] = [];
  /** What queued work found wrong. */
  readonly #wrong: string[] = [];

  constructor(bench: CacheBench, { steps = false, streams = 1, probes = 3, told, random = new Random(1) }: RunAheadOptions = {}) {
    this.#bench = bench;
    this.#random = random;
    this.#isStepped = steps;
    this.#readTokens = probes;
    this.#isTold = told !== undefined;
    this.streams = steps ? [] : told !== undefined ? [told] : Array.from({ length: streams }, () => nativeOf(bench.driver).createStream());
    const { tensors, sets } = bench.cache.layout;
    this.#firstSeen = tensors.map(({ index }) => {
      const { windowTokens, chunkTokens } = sets.find((set) => set.tensors.includes(index))!;
      if (windowTokens !== undefined) return (length) => Math.max(0, length + 1 - windowTokens);
      return (length) => (chunkTokens === undefined ? 0 : Math.floor(length / chunkTokens) * chunkTokens);
    });
    this.#found = steps ? undefined : new DeviceMemory({ driver: bench.driver, bytes: mostProbes });
  }

  get running(): readonly Running[] {
    return [...this.#running];
  }

  /** A sequence whose prompt is queued as far as it is not cached. */
  start(prompt: readonly number[], options: AcquireOptions = {}, lane = 0): Running {
    const stream = this.#isStepped || this.#isTold ? undefined : this.streams[lane];
    const sequence = this.#bench.cache.acquire({ tokens: prompt, ...options, ...stream === undefined ? {} : { stream } });
    const running = { sequence, lane, text: [...prompt] };
    this.#running.add(running);
    return running;
  }

  /** A copy of a sequence. */
  fork(of: Running): Running {
    const fork = { sequence: of.sequence.fork(), lane: of.lane, text: [...of.text] };
    this.#running.add(fork);
    return fork;
  }

  truncate(running: Running, tokens: number): void {
    running.sequence.truncate(tokens);
    running.text = running.text.slice(0, tokens);
  }

  release(running: Running, options?: { readonly fence?: Fence }): void {
    running.sequence.release(options);
    this.#running.delete(running);
  }

  /** Forgets those that the cache has released. */
  forgetReleased(): void {
    for (const running of this.#running) if (running.sequence.isReleased) this.#running.delete(running);
  }

  /** Queues one step of some sequences of one lane: what is left of a prompt, or `tokens` new tokens; then commits it, or not. */
  step(sequences: readonly Running[], tokens = 1, isCommitted = true): void {
    const { cache } = this.#bench;
    const batch = cache.createBatch();
    const counts = sequences.map(({ sequence, text }) => Math.max(text.length - sequence.length, tokens));
    sequences.forEach(({ sequence }, index) => batch.add(sequence, counts[index]!));
    cache.prepare(batch);
    const step = this.queuedStep += 1;
    for (const [index, running] of sequences.entries()) {
      const { sequence } = running;
      const more = Array.from({ length: sequence.length + counts[index]! - running.text.length }, () => this.#random.integer(1000));
      if (more.length > 0 && isCommitted) sequence.append(more);
      this.#queue(step, running, [...running.text, ...more], counts[index]!);
      if (isCommitted) running.text.push(...more);
    }
    const fence: Fence = this.#isStepped ? { step } : { stream: this.streams[sequences[0]!.lane]! };
    const options = this.#isTold ? undefined : { fence };
    if (isCommitted) cache.commit(batch, options);
    else cache.discard(batch, options);
  }

  /** Does the work of the steps up to this one; stepped engines only. */
  completeStep(step: number): void {
    while (this.#queued.length > 0 && this.#queued[0]!.step <= step) this.#queued.shift()!.run();
    this.#bench.cache.completeStep(step);
  }

  /** Does all queued work, that of the last stream first: what a stream does not wait for is not done before. Checks what it found. */
  finish(): void {
    if (this.#isStepped) return this.completeStep(this.queuedStep);
    for (const stream of this.streams.toReversed()) this.#bench.mock.completeStream(stream);
    this.#bench.mock.completeAll();
    const found = new Uint8Array(mostProbes);
    this.#found!.read(found);
    for (const { byte, expected, what } of this.#probes) if (found[byte] !== expected) this.#wrong.push(what);
    this.#probes = [];
  }

  /**
   * Does all work; no work has found a wrong byte, and every sequence has its own bytes, but in a slot in quarantine:
   * where the device also refused to undo what it had refused, rows of that slot are lost.
   */
  assertAll(): void {
    const { t, cache, device } = this.#bench;
    this.finish();
    t.deepEqual(this.#wrong, [], 'queued work read bytes of others');
    const slots = cache.inspect()['slots'] as readonly { readonly slot: number; readonly isQuarantined: boolean }[];
    const ruined = slots.filter(({ isQuarantined }) => isQuarantined).map(({ slot }) => slot);
    for (const running of this.#running) {
      if (!ruined.includes(running.sequence.slot)) t.is(this.#wrongTokensOf(running), 0, 'a sequence lost its bytes');
    }
    if (device !== undefined) t.deepEqual(device.misuses(), []);
    cache.verify();
  }

  /** Releases everything and gives back what the engine holds. */
  close(): void {
    for (const running of this.running) this.release(running);
    this.finish();
    this.#bench.cache.counts();
    this.#found?.close();
    if (this.#isTold) return;
    for (const stream of this.streams) nativeOf(this.#bench.driver).destroyStream(stream);
  }

  #queue(step: number, { sequence, lane }: Running, text: readonly number[], tokens: number): void {
    const bytes = bytesOf(text);
    const from = sequence.length;
    const { slot } = sequence;
    const tensors = this.#bench.cache.tensors.length;
    const read = Array.from({ length: this.#readTokens }, () => {
      const tensor = this.#random.integer(tensors);
      const first = this.#firstSeen[tensor]!(from);
      return { tensor, token: first + this.#random.integer(from + tokens - first) };
    });
    const what = (token: number): string => `step ${step}, slot ${slot}, token ${token} of ${from} and ${tokens} new ones`;
    const write = (stream: bigint): void => {
      const native = nativeOf(this.#bench.driver);
      for (let tensor = 0; tensor < tensors; tensor += 1) {
        const { tokenBytes } = this.#bench.cache.tensors[tensor]!;
        for (let token = from; token < from + tokens; token += 1) {
          native.fill(this.#addressOf(tensor, slot, token), bytes[token]!, tokenBytes, stream);
        }
      }
    };
    if (this.#isStepped) {
      this.#queued.push({
        step,
        run: () => {
          write(0n);
          for (const { tensor, token } of read) {
            if (this.#byteAt(tensor, slot, token) !== bytes[token]) this.#wrong.push(what(token));
          }
        },
      });
      return;
    }
    const stream = this.streams[lane]!;
    write(stream);
    this.#bench.mock.queueWork(stream, this.#bench.cache.tensors.map(({ strides, tokenBytes }, tensor) => {
      const first = this.#firstSeen[tensor]!(from);
      const bytes = (from + tokens - 1 - first) * strides.tokenBytes + tokenBytes;
      return { address: this.#addressOf(tensor, slot, first), bytes, access: 'read' as const };
    }));
    if (this.#probes.length + read.length > mostProbes) this.finish();
    for (const { tensor, token } of read) {
      const byte = this.#probes.length;
      const address = this.#addressOf(tensor, slot, token);
      nativeOf(this.#bench.driver).copy(this.#found!.address + BigInt(byte), address, 1, stream);
      this.#probes.push({ byte, expected: bytes[token]!, what: what(token) });
    }
  }

  #wrongTokensOf({ sequence, text }: Running): number {
    const bytes = bytesOf(text);
    let wrong = 0;
    for (let tensor = 0; tensor < this.#bench.cache.tensors.length; tensor += 1) {
      for (let token = this.#firstSeen[tensor]!(sequence.length); token < sequence.length; token += 1) {
        if (this.#byteAt(tensor, sequence.slot, token) !== bytes[token]) wrong += 1;
      }
    }
    return wrong;
  }

  #byteAt(tensor: number, slot: number, token: number): number {
    const into = new Uint8Array(1);
    nativeOf(this.#bench.driver).read(into, this.#addressOf(tensor, slot, token));
    return into[0]!;
  }

  #addressOf(tensor: number, slot: number, token: number): bigint {
    const { address, strides } = this.#bench.cache.tensors[tensor]!;
    return address + BigInt(slot * strides.slotBytes + token * strides.tokenBytes);
  }
}

/** A byte of each token, never 0. */
function bytesOf(text: readonly number[]): number[] {
  return keysOf(text).map((key) => 1 + mix32(key, 1) % 255);
}
