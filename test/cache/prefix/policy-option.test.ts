// The option `prefixCache.policy`: what is no policy is refused when the cache is opened, and nothing stays open then.

import test from 'ava';

import { adaptive, KvCache, lfu, lru, priority, slru, type EvictionPolicyFactory } from 'virtual-kv';

import { assertNothingLeft, cacheOptions, openDriver } from '../../helpers/cache.js';

const shipped = { adaptive, lfu, lru, priority, slru };

for (const [name, make] of Object.entries(shipped)) {
  test(`${name} that was not called is refused, and so is its name`, (t) => {
    const { driver, device } = openDriver({});
    for (const policy of [make, name]) {
      t.throws(() => new KvCache({ ...cacheOptions({}, driver), prefixCache: { policy: policy as never } }), {
        code: 'KV_INVALID_OPTION', message: new RegExp(`^\`prefixCache\\.policy\` must be .* Call it: \`policy: ${name}\\(\\)\`\\.$`),
      });
    }
    new KvCache({ ...cacheOptions({}, driver), prefixCache: { policy: make() } }).close();
    assertNothingLeft(t, driver, device);
  });
}

const broken: Readonly<Record<string, { readonly policy: EvictionPolicyFactory; readonly message: RegExp }>> = {
  'returns nothing': { policy: () => undefined as never, message: /^`prefixCache\.policy` must be a function that returns .*; it returned undefined\.$/ },
  'returns a policy without `victim`': {
    policy: () => ({ add: () => undefined, remove: () => undefined, split: () => undefined }) as never,
    message: /methods `add`, `remove`, `split` and `victim`; it returned an object/,
  },
  throws: {
    policy: () => {
      throw new Error('not today');
    },
    message: /^not today$/,
  },
};

for (const [what, { policy, message }] of Object.entries(broken)) {
  for (const on of ['mock', 'host'] as const) {
    test(`a policy that ${what} leaves nothing open (${on})`, (t) => {
      const { driver, device } = openDriver({ on });
      t.throws(() => new KvCache({ ...cacheOptions({ on }, driver), prefixCache: { policy } }), { message });
      assertNothingLeft(t, driver, device);
    });
  }
}
