// ScriptEngine and its tokenizer: tokens are bytes, and what follows token p of a text is byte p of a script, whatever stands before. So
// every answer is known, its characters are often split, and no time is spent. The engine can be held.

import type { Engine, EngineOutput, EnginePass } from 'virtual-kv';
import { TextPieces, type ChatMessage } from 'virtual-kv/llama';
import type { ServedTokenizer } from 'virtual-kv/server';

export const script = Buffer.from('The quick fox 🦊 grüßt the lazy dög. '.repeat(20));

export class ScriptEngine implements Engine {
  readonly vocabularyTokens = 256;
  passes = 0;
  #held: Promise<void> | undefined;
  #letGo = (): void => {};
  readonly #tokens = new Int32Array(512);
  readonly #logits: Float32Array | undefined;

  /** `answers`: with tokens, or with logits, of which those of the script are the largest. */
  constructor(answers: 'tokens' | 'logits' = 'tokens') {
    this.#logits = answers === 'logits' ? new Float32Array(32 * 256) : undefined;
  }

  /** Passes that are held. */
  waits = 0;
  #failure: Error | undefined;
  /** The answer to a conversation, in the place of the script. Only with `agentTokenizer`. */
  reply: ((conversation: AgentConversation) => string) | undefined;

  prefill(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#held !== undefined) this.waits += 1;
    return this.#held === undefined ? this.#answer(pass) : this.#held.then(() => this.#answer(pass));
  }

  decode(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    return this.prefill(pass);
  }

  /** Passes wait from now on until `letGo`. */
  hold(): void {
    this.#held ??= new Promise((resolve) => { this.#letGo = resolve; });
  }

  /** Passes throw it from now on; undefined: no more. */
  fail(error: Error | undefined): void {
    this.#failure = error;
  }

  letGo(): void {
    this.#held = undefined;
    this.waits = 0;
    this.#letGo();
  }

  #answer({ length, positions, tokenCounts, contextTokens }: EnginePass): EngineOutput {
    this.passes += 1;
    for (let index = 0; index < length; index += 1) {
      const end = positions[index]! + tokenCounts[index]!;
      this.#tokens[index] = this.reply === undefined ? script[(end - 1) % script.length]! : this.#replied(contextTokens[index]!.subarray(0, end));
    }
    const logits = this.#logits;
    if (logits === undefined) return { tokens: this.#tokens.subarray(0, length) };
    for (let index = 0; index < length; index += 1) {
      for (let token = 0; token < 256; token += 1) {
        const noise = ((token * 31 + positions[index]! + tokenCounts[index]! - 1) % 97) / 20;
        logits[index * 256 + token] = token === this.#tokens[index] ? 8 : noise;
      }
    }
    return { logits };
  }

  /** The byte of the reply that is next, or its end. */
  #replied(text: Int32Array): number {
    const prompt = text.lastIndexOf(answerMark);
    if (prompt < 0) return 0; // in the middle of the prompt
    const reply = this.reply!(JSON.parse(Buffer.from(text.subarray(0, prompt)).toString()) as AgentConversation);
    return Buffer.from(reply)[text.length - prompt - 1] ?? endOfReply;
  }
}

/** What a chat template is given. */
export interface AgentConversation {
  readonly messages: readonly ChatMessage[];
  readonly values: Readonly<Record<string, unknown>>;
}

/** Bytes that stand in no text: the end of a prompt, and that of a reply. */
const answerMark = 2;
export const endOfReply = 3;

/** Each byte is a token. */
export const byteTokenizer = {
  hasChatTemplate: true,
  encode: (text: string) => [...Buffer.from(text)],
  encodeChat: (messages: readonly ChatMessage[]) => [...Buffer.from(messages.map(({ role, content }) => `${role}:${content}\n`).join(''))],
  pieces: () => new TextPieces((tokens) => Buffer.from(tokens).toString()),
} satisfies ServedTokenizer;

/** Each byte is a token, and a conversation is its JSON. */
export const agentTokenizer = {
  ...byteTokenizer,
  encodeChat: (messages: readonly ChatMessage[], values: Readonly<Record<string, unknown>>) => [...Buffer.from(JSON.stringify({ messages, values })), answerMark],
  pieces: () => new TextPieces((tokens) => Buffer.from(tokens.filter((token) => token > endOfReply)).toString()),
} satisfies ServedTokenizer;

/** The answer to a prompt of so many tokens: this many tokens of the script, behind them. */
export function scriptFrom(promptTokens: number, tokens: number): string {
  return Buffer.from(Array.from({ length: tokens }, (_, at) => script[(promptTokens - 1 + at) % script.length]!)).toString();
}
