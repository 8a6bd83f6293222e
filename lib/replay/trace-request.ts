// TraceRequest: one request of a serving trace, as the format readers and the generated workload make it; it is not changed after
// that. A trace has lengths and times, never text.

/** Trace files this package reads. `azure`: the Azure LLM inference CSV. `mooncake`: the Mooncake JSONL. */
export type TraceFormat = 'azure' | 'mooncake';

/** Tokens that one hash id of a Mooncake trace stands for; the last block of a prompt may be shorter. */
export const HASH_BLOCK_TOKENS = 512;

export interface TraceRequest {
  /** Where it was read: the line of the file, from 1; or the number of a generated request, from 1. */
  readonly line: number;
  /** When it arrives, in ms after the first request of the trace. */
  readonly arrivalMs: number;
  /** Tokens of the prompt, at least 1. */
  readonly promptTokens: number;
  /** Tokens the model answered with; 0 is a request that is over after its prefill. */
  readonly outputTokens: number;
  /** Content of the prompt: equal ids at equal places are equal blocks of HASH_BLOCK_TOKENS tokens, first block first. */
  readonly hashIds?: Int32Array;
}

/** What a format reader makes of one line of a trace. The trace reader decides what a problem means. */
export type ParsedLine =
  | { readonly line: number; readonly request: TraceRequest }
  | {
    readonly line: number;
    /** Ends the sentence "FILE, line 7: …", without its full stop. */
    readonly problem: string;
    /** The lines after it cannot be read either, so it cannot be skipped. */
    readonly isFatal: boolean;
  };

/** Tokens that a request holds at its end: the last token it generates is never fed back, so it has no K and V. */
export function peakTokensOf({ promptTokens, outputTokens }: TraceRequest): number {
  return promptTokens + Math.max(0, outputTokens - 1);
}
