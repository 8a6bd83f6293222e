// Agents of the AI SDK and of LangChain, with two tools, in three turns, whole and streamed: what their clients sent
// was recorded once (agents.json) against this server and the same engine. Each request is sent again: the answer is
// the one that the client understood then, which its next request shows.

import { readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { agentReply } from './agent-reply.js';
import { agentTokenizer, endOfReply } from './script-engine.js';
import { withServer } from './serving-world.js';

interface Message {
  readonly role?: string;
  readonly content?: string | null;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly { readonly id: string; readonly function: { readonly name: string; readonly arguments: string } }[];
}

/** An answer, joined, without ids. */
interface Essence {
  readonly content: string;
  readonly reasoning: string;
  readonly calls: readonly (readonly [name: string, given: string])[];
  readonly finish: string;
}

interface Recording {
  readonly clients: string;
  readonly sessions: readonly {
    readonly name: string;
    readonly text: string;
    readonly exchanges: readonly { readonly request: { readonly messages: readonly Message[]; readonly stream?: boolean }; readonly answer: Essence }[];
  }[];
}

const root = path.resolve(__dirname, '..', '..');
const recording = JSON.parse(readFileSync(path.join(root, 'test', 'server', 'agents.json'), 'utf8')) as Recording;

function joined(messages: readonly Message[], finish: string): Essence {
  return {
    content: messages.map(({ content }) => content ?? '').join(''),
    reasoning: messages.map((each) => each.reasoning_content ?? '').join(''),
    calls: messages.flatMap((each) => each.tool_calls ?? []).map(({ function: called }) => [called.name, called.arguments] as const), finish,
  };
}

interface Choice { readonly message: Message; readonly delta: Message; readonly finish_reason: string | null }

async function essenceOf(response: Response): Promise<Essence> {
  const text = await response.text();
  if (!response.headers.get('content-type')!.startsWith('text/event-stream')) {
    const [choice] = (JSON.parse(text) as { choices: [Choice] }).choices;
    return joined([choice.message], choice.finish_reason!);
  }
  const choices = [...text.matchAll(/^data: (\{.*)$/gm)].flatMap(([, json]) => (JSON.parse(json!) as { choices: Choice[] }).choices);
  return joined(choices.map(({ delta }) => delta), choices.at(-1)!.finish_reason!);
}

for (const { name, text, exchanges } of recording.sessions) {
  test(`${name}: what it sends is answered so that it goes on`, (t) =>
    withServer(t, { tokenizer: agentTokenizer, stopTokens: [endOfReply], cacheTokens: 4_096, slots: 2 }, async (world) => {
      world.engine.reply = agentReply;
      t.is(exchanges.length, 3);
      for (const [turn, { request, answer }] of exchanges.entries()) {
        const response = await world.post('/v1/chat/completions', request);
        t.is(response.status, 200);
        t.is(response.headers.get('x-ignored-parameters'), null);
        t.deepEqual(await essenceOf(response), answer);
        const understood = exchanges[turn + 1]?.request.messages.findLast(({ role }) => role === 'assistant');
        if (understood === undefined) t.is(answer.content, text);
        else t.like(joined([understood], ''), { content: answer.content, calls: answer.calls });
      }
    }));
}
