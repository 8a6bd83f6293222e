// Logprobs: log-probabilities of an answer's tokens, as OpenAI's API writes them. A token's text is what it adds behind
// other text, so that no space at its start is lost; a token with a part of a character reads U+FFFD, and `bytes` has
// what it is made of where the tokenizer knows that.

import type { TokenLogProbability } from '../index.js';
import type { CompletionKind } from './api-request.js';
import type { ServedTokenizer } from './server-options.js';

/** What is written for a token that is impossible: JSON has no -Infinity. */
const impossible = -9_999;

export interface LogprobsOptions {
  readonly kind: CompletionKind;
  readonly tokenizer: ServedTokenizer;
  /** A token of a letter, behind which others show all of their text. */
  readonly letter: number;
}

/** Of one answer. */
export class Logprobs {
  readonly #options: LogprobsOptions;
  readonly #texts = new Map<number, string>();
  /** Characters of the tokens so far. */
  #offset = 0;

  constructor(options: LogprobsOptions) {
    this.#options = options;
  }

  /** The next tokens as `logprobs` of a choice; NaN: nothing stands before the token. */
  write(tokens: readonly TokenLogProbability[]): object {
    return this.#options.kind === 'chat' ? { content: tokens.map((each) => this.#content(each)), refusal: null } : this.#lists(tokens);
  }

  #content(given: TokenLogProbability): object {
    const of = ({ token, logProbability }: Omit<TokenLogProbability, 'best'>): object => {
      const text = this.#textOf(token);
      return { token: text, logprob: Math.max(impossible, logProbability), bytes: this.#bytesOf(token, text) };
    };
    return { ...of(given), top_logprobs: given.best.map(of) };
  }

  #lists(tokens: readonly TokenLogProbability[]): object {
    const offsets = tokens.map(({ token }) => {
      const offset = this.#offset;
      this.#offset += this.#textOf(token).length;
      return offset;
    });
    return {
      tokens: tokens.map(({ token }) => this.#textOf(token)),
      token_logprobs: tokens.map(
        ({ logProbability }) => (Number.isNaN(logProbability) ? null : Math.max(impossible, logProbability)),
      ),
      top_logprobs: tokens.map((each) => (Number.isNaN(each.logProbability) ? null : this.#top(each))),
      text_offset: offsets,
    };
  }

  /** By their texts: the likeliest first, and of those that read alike it alone; the chosen one is always among them. */
  #top({ token, logProbability, best }: TokenLogProbability): Record<string, number> {
    const top: Record<string, number> = Object.create(null) as Record<string, number>;
    for (const each of [...best, { token, logProbability }]) top[this.#textOf(each.token)] ??= Math.max(impossible, each.logProbability);
    return top;
  }

  #bytesOf(token: number, text: string): readonly number[] | null {
    const bytes = this.#options.tokenizer.bytesOf?.(token);
    if (bytes !== undefined) return [...bytes];
    return text.includes('\uFFFD') ? null : [...Buffer.from(text)];
  }

  #textOf(token: number): string {
    let text = this.#texts.get(token);
    if (text === undefined) {
      const { tokenizer, letter } = this.#options;
      const pieces = tokenizer.pieces();
      pieces.push(letter);
      text = pieces.push(token) + pieces.end();
      this.#texts.set(token, text);
    }
    return text;
  }
}
