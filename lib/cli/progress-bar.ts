// A line with a bar on a terminal, drawn over itself: at most ten times a second, with the cursor hidden, and gone when it stops.

const WIDTH = 28;
const MIN_INTERVAL_MS = 100;

const hideCursor = '\u001B[?25l';
const showCursor = '\u001B[?25h';
const clearLine = '\r\u001B[K';

export class ProgressBar {
  readonly #stream: NodeJS.WriteStream;
  readonly #paint: (bar: string) => string;
  #drawnMs = -Infinity;
  #isStopped = false;
  readonly #onExit = (): void => this.stop();

  /** Draws the empty bar; `paint` colours it. The cursor comes back also when the process exits before `stop`. */
  constructor(stream: NodeJS.WriteStream, paint: (bar: string) => string, status: string) {
    this.#stream = stream;
    this.#paint = paint;
    stream.write(hideCursor);
    process.once('exit', this.#onExit);
    this.update(0, status);
  }

  /** @param fraction 0 to 1. @param status What stands behind the bar; cut where the line ends. */
  update(fraction: number, status: string): void {
    const nowMs = performance.now();
    if (this.#isStopped || nowMs - this.#drawnMs < MIN_INTERVAL_MS) return;
    this.#drawnMs = nowMs;
    const full = Math.round(Math.min(1, Math.max(0, fraction)) * WIDTH);
    const room = Math.max(0, (this.#stream.columns || 80) - WIDTH - 2);
    const bar = this.#paint('█'.repeat(full) + '░'.repeat(WIDTH - full));
    this.#stream.write(`${clearLine}${bar} ${status.slice(0, room)}`);
  }

  /** Clears the line. Idempotent. */
  stop(): void {
    if (this.#isStopped) return;
    this.#isStopped = true;
    process.off('exit', this.#onExit);
    this.#stream.write(clearLine + showCursor);
  }
}
