// EitherSignal: one signal for two, of which one lives long. Not AbortSignal.any: what it makes stays in the lists of
// the long-lived signal, in some versions of Node.js for ever. The owner calls `forget` when it listens no more.

export class EitherSignal {
  /** Aborted with the first of the two, for its reason. */
  readonly signal: AbortSignal;
  readonly forget: () => void;

  constructor(lasting: AbortSignal, brief: AbortSignal | undefined) {
    if (brief === undefined) {
      this.signal = lasting;
      this.forget = () => { /* nothing was added */ };
      return;
    }
    const controller = new AbortController();
    const both = [lasting, brief];
    const abort = (): void => { controller.abort(both.find(({ aborted }) => aborted)!.reason); };
    for (const signal of both) signal.addEventListener('abort', abort);
    if (both.some(({ aborted }) => aborted)) abort();
    this.signal = controller.signal;
    this.forget = () => { for (const signal of both) signal.removeEventListener('abort', abort); };
  }
}
