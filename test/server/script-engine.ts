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

  prefill(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    return this.#held === undefined ? this.#answer(pass) : this.#held.then(() => this.#answer(pass));
  }

  decode(pass: EnginePass): EngineOutput | Promise<EngineOutput> {
    return this.prefill(pass);
  }

  /** Passes wait from now on until `letGo`. */
  hold(): void {
    this.#held ??= new Promise((resolve) => { this.#letGo = resolve; });
  }

  letGo(): void {
    this.#held = undefined;
    this.#letGo();
  }

  #answer({ length, positions, tokenCounts }: EnginePass): EngineOutput {
    this.passes += 1;
    for (let index = 0; index < length; index += 1) this.#tokens[index] = script[(positions[index]! + tokenCounts[index]! - 1) % script.length]!;
    const logits = this.#logits;
    if (logits === undefined) return { tokens: this.#tokens.subarray(0, length) };
    for (let index = 0; index < length; index += 1) {
      for (let token = 0; token < 256; token += 1) logits[index * 256 + token] = token === this.#tokens[index] ? 8 : ((token * 31 + positions[index]!) % 97) / 20;
    }
    return { logits };
  }
}

/** Each byte is a token. */
export const byteTokenizer = {
  hasChatTemplate: true,
  encode: (text: string) => [...Buffer.from(text)],
  encodeChat: (messages: readonly ChatMessage[]) => [...Buffer.from(messages.map(({ role, content }) => `${role}:${content}\n`).join(''))],
  pieces: () => new TextPieces((tokens) => Buffer.from(tokens).toString()),
} satisfies ServedTokenizer;

/** The answer to a prompt of so many tokens: this many tokens of the script, behind them. */
export function scriptFrom(promptTokens: number, tokens: number): string {
  return Buffer.from(Array.from({ length: tokens }, (_, at) => script[(promptTokens - 1 + at) % script.length]!)).toString();
}
