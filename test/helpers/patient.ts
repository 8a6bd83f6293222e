// Time limits for tests: that a busy machine answers late says nothing of what is tested.

/** Of a Redis tier. */
export const patient = { connectTimeoutMs: 60_000, findTimeoutMs: 60_000, getTimeoutMs: 60_000, putTimeoutMs: 60_000 } as const;

/** Of a promotion: with it a request waits for a tier of unknown speed as long as it takes, and not a quarter of a second. */
export const deadlineMs = 600_000;
