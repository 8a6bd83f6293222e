// A server for days: agents with tools, streams that are left, several tenants, requests that are refused, on
// connections that are kept. Heap, descriptors and connections stay level, and every answer is the one of its
// conversation. 100,000 requests in `release`.

import { readdirSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';
import { scaled, tier } from '../runner/tier.js';
import { agentReply } from './agent-reply.js';
import { agentTokenizer, endOfReply } from './script-engine.js';
import { withServer, type ServingWorld } from './serving-world.js';

const seed = seedOf('server soak');
const count = scaled(tier === 'release' ? 100_000 : 2_000, 400);
const clients = 16;
const keys = ['k1', 'k2', 'k3'];

const tools = ['weather', 'time'].map((name) => ({ type: 'function', function: { name, parameters: { type: 'object' } } }));
const calls = [{ id: 'call00001', type: 'function', function: { name: 'weather', arguments: '{}' } }, { id: 'call00002', type: 'function', function: { name: 'time', arguments: '{}' } }];
const results = calls.map(({ id }) => ({ role: 'tool', tool_call_id: id, content: '7' }));

/** A request, and what its answer must have. */
interface Case {
  readonly path: string;
  readonly body: object;
  readonly status: number;
  readonly says: string;
}

function caseOf(random: Random): Case {
  const chat = (more: object, says: string, status = 200): Case => ({ path: '/v1/chat/completions', body: { stream: random.chance(0.5), user: `u${random.integer(3)}`, ...more }, status, says });
  const messages = [{ role: 'user', content: `question ${random.integer(40)}` }];
  const called = [...messages, { role: 'assistant', content: null, tool_calls: calls }, ...results];
  switch (random.integer(6)) {
    case 0: return chat({ messages, tools }, '"finish_reason":"tool_calls"');
    case 1: return chat({ messages: called, tools }, '"finish_reason":"tool_calls"');
    case 2: return chat({ messages, n: 2, verbosity: 'low' }, '"index":1');
    case 3: return chat({ messages, tools: [{}], stream: false }, 'tools[0]', 400);
    case 4: return { path: '/v1/completions', body: { prompt: 'abc', max_tokens: 1 + random.integer(4), echo: true }, status: 200, says: '"text":"abc' };
    default: return chat({ messages: [...called, { role: 'assistant', content: 'so' }, ...results], tools }, '"finish_reason":"stop"');
  }
}

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

slow('thousands of requests')(`${count} requests with aborts, tools and tenants leave heap, descriptors and connections level (seed ${seed})`, async (t) => {
  await withServer(t, { tokenizer: agentTokenizer, stopTokens: [endOfReply], cacheTokens: 2_048, slots: 8, apiKeys: keys, scheduler: { maxWaiting: 256 } }, async (world) => {
    world.engine.reply = agentReply;
    const random = new Random(seed);
    let [left, answered] = [0, 0];
    const ask = async (): Promise<void> => {
      const { path, body, status, says } = caseOf(random);
      const key = keys[random.integer(keys.length)]!;
      if (random.chance(1 / 8)) {
        await leave(world, path, JSON.stringify(body), key);
        left += 1;
        return;
      }
      const response = await world.post(path, body, {
        headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
      });
      const text = await response.text();
      answered += 1;
      const isRight = response.status === status && text.includes(says);
      if (!isRight) t.fail(`${JSON.stringify(body)}: ${response.status} ${text.slice(0, 300)}`);
    };
    const round = async (requests: number): Promise<Level> => {
      let begun = 0;
      await Promise.all(Array.from({ length: clients }, async () => {
        while (begun < requests) {
          begun += 1;
          await ask();
        }
      }));
      await world.scheduler.idle();
      return levelOf(world);
    };
    await round(Math.ceil(count / 5)); // caches and code are warm
    const levels: Level[] = [];
    for (let part = 0; part < 4; part += 1) levels.push(await round(Math.ceil(count / 5)));
    t.log(levels, { answered, left });
    const [first] = levels;
    const least = (name: keyof Level): number => Math.min(...levels.slice(1).map((level) => level[name])) - first![name]; // what a leak adds, each adds
    t.true(least('heapBytes') < 3e6, `${least('heapBytes')} bytes`);
    t.true(least('descriptors') <= clients);
    t.true(levels.every(({ connections }) => connections <= 2 * clients));
    t.true(left > 0 && answered > 0.7 * count);
  });
});

/** Sends a request, and leaves at some moment. The client of `fetch` would keep much of each that is left. */
async function leave(world: ServingWorld, path: string, body: string, key: string): Promise<void> {
  const socket = (await world.connect()).on('error', () => {});
  socket.write(`POST ${path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${key}\r\n` +
    `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
  await new Promise(setImmediate);
  await new Promise((resolve) => { socket.once('close', resolve).destroy(); });
}

interface Level {
  readonly heapBytes: number;
  readonly descriptors: number;
  readonly connections: number;
}

async function levelOf(world: ServingWorld): Promise<Level> {
  const state = await (await fetch(`${world.url}/watch/state`, { headers: { authorization: `Bearer ${keys[0]}` } })).json() as { connections: number };
  collect();
  return { heapBytes: process.memoryUsage().heapUsed, descriptors: readdirSync('/proc/self/fd').length, connections: state.connections };
}
