// A cache without tiers pays nothing for them: none of its calls enters a file of theirs.

import test from 'ava';

import { hostTier } from 'virtual-kv';

import { calledOn, useSequences } from '../../helpers/called-functions.js';

const files =
  /\/dist\/(tiers\/|store\/|cache\/(cache-tiers|demotions|finished-texts|promotion\w*|promotion-\w+|text-places|transfers|selections|block-copies|reordering)\.js)/;

test.serial('without tiers no call of a sequence or a step enters their files', async (t) => {
  t.deepEqual(await calledOn({}, files, useSequences), {});
  const withThem = await calledOn({ prefixCache: { tiers: [hostTier({ bytes: 2 ** 24 })] } }, files, useSequences);
  t.true(Object.keys(withThem).length > 10, 'which the same calls do where there are any');
});
