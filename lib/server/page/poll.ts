// Asks the server for its state, once a second while the page is visible and not paused: a page in the background asks nothing. The
// API key, where one is needed, stays in this tab's session.

import type { ServerState } from '../../../dist/server/watch-state.js';

/** What the server answers, by the declarations that its own compilation has made. */
export type State = ServerState;
export type Slot = State['cache']['slots'][number];
export type Request = State['requests']['running'][number];

const keyName = 'virtual-kv-key';
const everyMs = 1_000;
const mostMs = 8_000;

export interface PollListener {
  readonly onState: (state: State) => void;
  /** `wasKey`: a key was sent, and is not known. */
  readonly onKeyWanted: (wasKey: boolean) => void;
  readonly onFailure: (problem: string) => void;
}

export class Poll {
  readonly #listener: PollListener;
  #timer: number | undefined;
  #delayMs = everyMs;
  #isAsking = false;
  #isPaused = false;

  constructor(listener: PollListener) {
    this.#listener = listener;
    document.addEventListener('visibilitychange', () => { this.#go(); });
  }

  get isPaused(): boolean {
    return this.#isPaused;
  }

  start(): void {
    this.#go();
  }

  pause(isPaused: boolean): void {
    this.#isPaused = isPaused;
    this.#go();
  }

  useKey(key: string): void {
    sessionStorage.setItem(keyName, key);
    this.#go();
  }

  #go(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (!this.#isPaused && !document.hidden && !this.#isAsking) void this.#ask();
  }

  async #ask(): Promise<void> {
    this.#isAsking = true;
    let isWaiting = false;
    try {
      const key = sessionStorage.getItem(keyName);
      const headers: Record<string, string> = key === null ? {} : { authorization: `Bearer ${key}` };
      const response = await fetch('watch/state', { headers, cache: 'no-store', signal: AbortSignal.timeout(10_000) });
      if (response.status === 401) {
        isWaiting = true;
        sessionStorage.removeItem(keyName);
        this.#listener.onKeyWanted(key !== null);
        return;
      }
      if (!response.ok) throw new Error(`the server answers with ${response.status}`);
      this.#listener.onState(await response.json() as State);
      this.#delayMs = everyMs;
    } catch (error) {
      this.#delayMs = Math.min(mostMs, 2 * this.#delayMs);
      this.#listener.onFailure(error instanceof TypeError || (error as Error).name === 'TimeoutError' ? 'the server does not answer' : (error as Error).message);
    } finally {
      this.#isAsking = false;
      if (!isWaiting && !this.#isPaused && !document.hidden) this.#timer = setTimeout(() => { this.#go(); }, this.#delayMs) as unknown as number;
    }
  }
}
