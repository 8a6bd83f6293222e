// Bodies that nobody would send: a valid one with fields removed, replaced, repeated and nested. Each is answered or refused with a
// JSON error that names something; the server never fails, and nothing is left.

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { withServer } from './serving-world.js';
import { slow } from '../runner/slow.js';

const strange: readonly unknown[] = [
  null, true, false, 0, -1, 1, 0.5, 1e308, -1e308, 2 ** 53, '', 'a', '\u0000', '\uD800', '🦊', 'a'.repeat(600), [], [[]], [null], ['a', 1], {}, { a: 1 },
  { length: 5 }, { toString: 1 }, [[1, 2], 'a'], [{ role: 'user', content: 'a' }], [{ type: 'text', text: 5 }], 'stop', { include_usage: 'yes' },
];
const names = [
  'model', 'messages', 'prompt', 'max_tokens', 'max_completion_tokens', 'temperature', 'top_p', 'top_k', 'seed', 'n', 'stop', 'stream', 'stream_options', 'user',
  'prompt_cache_key', 'cache_salt', 'session_hint', 'urgency', 'deadline_ms', 'logprobs', 'tools', 'logit_bias', 'min_p', 'presence_penalty', 'frequency_penalty', 'repetition_penalty', '__proto__', 'constructor', 'toString', 'x',
];

const seed = seedOf('bodies');

slow('thousands of random bodies')(`random bodies are answered or refused, and never harm the server (seed ${seed})`, (t) => withServer(t, { slots: 4 }, async (world) => {
  const random = new Random(seed);
  const pick = <T>(list: readonly T[]): T => list[random.integer(list.length)]!;
  const statuses = new Map<number, number>();
  const bodyOf = (isChat: boolean): string => {
    const body: Record<string, unknown> = isChat
      ? { messages: [{ role: 'user', content: 'Hi' }], max_tokens: 5 } : { prompt: 'Hi', max_tokens: 5 };
    for (let change = random.integer(4); change > 0; change -= 1) {
      const name = pick(names);
      if (random.chance(0.2)) delete body[name];
      else Object.defineProperty(body, name, { value: pick(strange), enumerable: true, configurable: true, writable: true });
    }
    if (isChat && random.chance(0.2)) body['messages'] = [{ role: pick(['user', 'assistant', 1, null]), content: pick(strange) }];
    const text = JSON.stringify(body);
    return random.chance(0.05) ? text.slice(0, random.integer(text.length)) : text;
  };
  for (let round = 0; round < 30; round += 1) {
    await Promise.all(Array.from({ length: 10 }, async () => {
      const isChat = random.chance(0.6);
      const body = bodyOf(isChat);
      const response = await fetch(`${world.url}${isChat ? '/v1/chat/completions' : '/v1/completions'}`, {
        method: 'POST', headers: { 'content-type': 'application/json' }, body,
      });
      const text = await response.text();
      statuses.set(response.status, (statuses.get(response.status) ?? 0) + 1);
      t.true([200, 400, 404, 413, 429, 504].includes(response.status), `${response.status} for ${body}: ${text}`);
      if (response.status !== 200) t.true((JSON.parse(text) as { error: { message: string } }).error.message.length > 10, body);
    }));
  }
  t.true(statuses.get(200)! > 15 && statuses.get(400)! > 50, JSON.stringify([...statuses]));
}));
