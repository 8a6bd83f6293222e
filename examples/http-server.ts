// An engine behind HTTP, with all duties of a server: stream, stop when the client leaves, refuse requests beyond the queue's
// bound, and close in the right order. It calls itself, and ends: one client reads its answer, one leaves early, one is refused.
// Run it: npm run example -- http-server

import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import * as path from 'node:path';
import { text } from 'node:stream/consumers';
import { setImmediate } from 'node:timers/promises';

import { isKvError, KvCache, OnlineScheduler } from 'virtual-kv';
import { LlamaEngine, LlamaModel, LlamaTokenizer } from 'virtual-kv/llama';

import { runExample } from './console/command.js';

const folder = path.join(__dirname, '..', 'examples', 'llama', 'storyteller');

/** Answers one request; never rejects. */
async function answer(request: IncomingMessage, response: ServerResponse, scheduler: OnlineScheduler, tokenizer: LlamaTokenizer): Promise<void> {
  const left = new AbortController();
  response.on('close', () => { left.abort(); }); // a client that leaves ends its request after the running step
  try {
    const stream = scheduler.submit({
      tokens: tokenizer.encodeChat([{ role: 'user', content: await text(request) }]), maxNewTokens: 200,
      stopTokens: tokenizer.endTokens, signal: left.signal, deadlineMs: 30_000,
    });
    const textOf = tokenizer.stream();
    for await (const token of stream) {
      if (!response.write(textOf(token))) await Promise.race([once(response, 'drain'), once(response, 'close')]);
    }
  } catch (error) { // a typed error: before the first token it becomes a status, after it the answer just ends
    if (!response.headersSent) response.writeHead(isKvError(error, 'KV_QUEUE_FULL') ? 503 : isKvError(error) && error.recovery === 'fix' ? 400 : 500);
    if (!left.signal.aborted) response.write((error as Error).message);
  }
  response.end();
}

async function main(): Promise<void> {
  const model = new LlamaModel(folder);
  const tokenizer = new LlamaTokenizer(folder);
  const cache = new KvCache({ model: model.shape(), slots: 2, maxTokens: 1_024, memoryBudgetBytes: 2 ** 26, driver: 'host' });
  const engine = new LlamaEngine({ model, cache });
  const scheduler = new OnlineScheduler({ cache, engine, maxWaiting: 1 });
  const server = createServer((request, response) => void answer(request, response, scheduler, tokenizer)).listen(0, '127.0.0.1');
  await once(server, 'listening');

  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const ask = (body: string, signal?: AbortSignal): Promise<Response> => fetch(url, { method: 'POST', body, ...(signal && { signal }) });
  const impatient = new AbortController();
  const first = await ask('Tell me a story about a fox.'); // a response is there with its first token
  await ask('Tell me a story about a dog.', impatient.signal);
  const waiting = ask('Tell me a story about a cat.');
  while (scheduler.waitingRequests === 0) await setImmediate();
  const refused = await ask('Tell me a story about an owl.');
  impatient.abort();
  for (const response of [first, await waiting, refused]) console.log(response.status, (await response.text()).slice(0, 70));
  await scheduler.idle();
  const { completedRequests, failedRequests } = scheduler.totals;
  console.log(`${completedRequests} answered; ${failedRequests} whose client left`);

  server.close(); // no new clients; then waiting requests end with KV_CLOSED, the pass ends, and the cache is closed last
  await scheduler.close();
  server.closeAllConnections();
  engine.close();
  cache.close();
}

runExample(main);
