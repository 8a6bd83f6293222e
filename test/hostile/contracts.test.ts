// Wrong values are refused by their code, by the name of what is wrong, and before anything has changed.

import { inspect } from 'node:util';

import test from 'ava';

import type { KvError } from 'virtual-kv';

import { withMember, type Place } from './cases.js';
import { contracts } from './contracts.js';
import { settle } from './judge.js';
import { hostOnly, table } from './table.js';
import { World } from './world.js';

function shown(value: unknown): string {
  try {
    return inspect(value, { depth: 1, breakLength: Infinity }).slice(0, 80);
  } catch {
    return typeof value; // its members throw
  }
}

const placeOf = (text: string): Place => (text === '' ? [0] : [...(/^\d/.test(text) ? [] : ['0']), ...text.split('.')]);

for (const [name, lines] of Object.entries(contracts)) {
  const [owner, method] = [name.slice(0, name.indexOf('.')), name.slice(name.indexOf('.') + 1)];
  test(`${name} refuses what its contract says`, async (t) => {
    const world = new World(hostOnly.has(owner) ? 'host' : 'mock');
    const { run, meant } = table[owner]![method]!(world);
    for (const [text, values, code = 'KV_INVALID_OPTION', tells] of lines) {
      const place = placeOf(text);
      for (const value of values) {
        const title = `${text}: ${shown(value)}`;
        const before = world.state();
        const given = withMember(meant, place, { value, writable: true }) as never[];
        const call = async (): Promise<void> => { await settle(run(...given)); };
        const error = await t.throwsAsync(call, { code, any: true }, title) as KvError;
        if (tells instanceof RegExp) t.regex(error.message, tells, title);
        else if (tells !== undefined) t.like(error.details, tells, title);
        const { option } = error.details as { readonly option?: string };
        const names = place.slice(1).map(String);
        if (names.length > 0 && /KV_(INVALID|UNKNOWN)_OPTION/.test(code)) {
          t.true(names.some((each) => option?.includes(each)), `${title}: names ${option}`);
        }
        t.is(world.state(), before, title);
      }
    }
    await world.close();
  });
}
