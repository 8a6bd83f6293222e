// Memory for payloads where the system refuses it.

import test from 'ava';

import { HostMemory } from '#internal/tiers/host-memory.js';

const tooMany = 2 ** 45; // no machine gives so much

test('memory that the system refuses is not there, and what it gives is there as before', (t) => {
  t.is(new HostMemory(2 ** 50, tooMany).take(1), undefined);
  const memory = new HostMemory(tooMany + 16_384, 4096);
  t.is(memory.take(tooMany), undefined);
  t.is(memory.usedBytes, 0);
  t.is(memory.take(16_384)?.length, 16_384, 'nothing is counted that was refused');
});
