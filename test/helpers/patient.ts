// Time limits of a Redis tier for tests: that a busy machine answers late says nothing of what is tested.
export const patient = { connectTimeoutMs: 60_000, findTimeoutMs: 60_000, getTimeoutMs: 60_000, putTimeoutMs: 60_000 } as const;
