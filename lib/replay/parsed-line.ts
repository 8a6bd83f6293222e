// ParsedLine: what a format reader makes of one line of a trace. The trace reader decides what a problem means.

import type { TraceRequest } from './trace-request.js';

export type ParsedLine =
  | { readonly line: number; readonly request: TraceRequest }
  | {
    readonly line: number;
    /** Ends the sentence "FILE, line 7: …", without its full stop. */
    readonly problem: string;
    /** The lines after it cannot be read either, so it cannot be skipped. */
    readonly isFatal: boolean;
  };
