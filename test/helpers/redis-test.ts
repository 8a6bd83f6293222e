// Tests that need redis-server: skipped by name where it is not installed.

import test, { type ExecutionContext, type TestFn } from 'ava';

import { hasRedis } from './redis-server.js';

/** `declare` stands for `test`: `slow('why')`. */
export function redisTest(title: string, run: (t: ExecutionContext) => Promise<void>, declare = test as TestFn): void {
  if (hasRedis) declare(title, run);
  else test.skip(`${title} (no redis-server)`, run);
}
