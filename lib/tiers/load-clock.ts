// LoadClock: the time by which loads are measured and waited for, so that a test can step one of its own.

export interface LoadClock {
  /** Milliseconds from some time on. */
  now(): number;
  /**
   * Calls `wake` in so many ms, once; returns what cancels it. An alarm that is not `lasting` does not keep the process
   * alive.
   */
  after(wake: () => void, delayMs: number, lasting: boolean): () => void;
}

/** That of the process. */
export const processClock: LoadClock = {
  now: () => performance.now(),
  after: (wake, delayMs, lasting) => {
    const timer = setTimeout(wake, delayMs);
    if (!lasting) timer.unref();
    return () => { clearTimeout(timer); };
  },
};
