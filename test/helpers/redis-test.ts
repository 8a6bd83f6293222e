// Tests that need redis-server: skipped by name where it is not installed.

import test, { type ExecutionContext } from 'ava';

import { hasRedis } from './redis-server.js';

export function redisTest(title: string, run: (t: ExecutionContext) => Promise<void>): void {
  if (hasRedis) test(title, run);
  else test.skip(`${title} (no redis-server)`, run);
}
