import { writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { readApiKeys } from '#internal/cli/api-keys-file.js';
import { refuses } from '../helpers/refuses.js';
import { folderOf } from '../helpers/temporary-folder.js';

test('a line has a key, its tenant and its urgency; comments and empty lines are left out', (t) => {
  const file = path.join(folderOf(t), 'keys');
  writeFileSync(file, '# of the shop\r\nsk-1 shop\r\n\n  sk-2\tshop  10\nsk-3\n#sk-4\n');
  t.deepEqual(readApiKeys(file), [{ key: 'sk-1', tenant: 'shop' }, { key: 'sk-2', tenant: 'shop', maxUrgency: 10 }, { key: 'sk-3', tenant: undefined }]);
});

test('what is no line of keys is refused by its number, and no key is in the message', (t) => {
  const file = path.join(folderOf(t), 'keys');
  for (const text of ['ok\nsécret shop', 'ok\nsecret shop 256', 'ok\nsecret shop x', 'ok\nsecret shop 1 more']) {
    writeFileSync(file, text);
    const { message } = t.throws(() => readApiKeys(file), { code: 'KV_INVALID_OPTION', message: /line 2/ });
    t.notRegex(message, /s[eé]cret/);
  }
  writeFileSync(file, '# none\n');
  refuses(t, () => readApiKeys(file), 'KV_INVALID_OPTION', { option: '--api-keys', received: 'none' });
  t.throws(() => readApiKeys(`${file}-2`), { code: 'ENOENT' });
});
