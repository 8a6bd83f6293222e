// Refusals by their code, and by the fields of its details that tell its causes apart: messages may change at any time.

import type { ExecutionContext } from 'ava';

import type { ErrorCode, ErrorDetails } from 'virtual-kv';

/** The call throws the error of `code`, whose details have these fields. */
export function refuses<C extends ErrorCode>(
  t: ExecutionContext, call: () => unknown, code: C, details: Partial<ErrorDetails[C]>, title?: string,
): void {
  t.like(t.throws(call, { code }, title), { details }, title);
}

/** The promise is rejected with the error of `code`, whose details have these fields. */
export async function refusesAsync<C extends ErrorCode>(
  t: ExecutionContext, promise: PromiseLike<unknown>, code: C, details: Partial<ErrorDetails[C]>, title?: string,
): Promise<void> {
  t.like(await t.throwsAsync(promise, { code }, title), { details }, title);
}
