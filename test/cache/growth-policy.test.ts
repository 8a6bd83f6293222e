import test from 'ava';

import { ahead, onDemand } from 'virtual-kv';

test('`onDemand` wishes nothing beyond what there is', (t) => {
  for (const length of [0, 1, 2048, 2 ** 31 - 1]) {
    t.is(onDemand()(length, 0), length);
    t.is(onDemand()(length, 5000), length, 'nor what was earmarked: that is set aside anyway');
  }
});

test('`ahead` wishes the next tokens, 16 when nothing is said', (t) => {
  t.is(ahead()(0, 0), 16);
  t.is(ahead()(2048, 0), 2064);
  t.is(ahead(1)(2048, 0), 2049);
  t.is(ahead(500)(7, 0), 507);
});

test('`ahead` wants an earmarked prompt whole, and then the next tokens', (t) => {
  t.is(ahead(16)(0, 33_000), 33_000);
  t.is(ahead(16)(20_000, 33_000), 33_000);
  t.is(ahead(16)(32_990, 33_000), 33_006);
  t.is(ahead(16)(33_000, 33_000), 33_016);
});

test('the wish never shrinks while a sequence grows', (t) => {
  for (const policy of [onDemand(), ahead(), ahead(100)]) {
    let before = 0;
    for (let length = 0; length < 3000; length += 7) {
      const wish = policy(length, 1000);
      t.true(wish >= before && wish >= length);
      before = wish;
    }
  }
});

test('`ahead` of no whole positive number is refused', (t) => {
  for (const tokens of [0, -1, 0.5, NaN, Infinity, '16' as never]) t.throws(() => ahead(tokens), { code: 'KV_INVALID_OPTION' });
});
