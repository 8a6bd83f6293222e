// TextPieces: an answer's text as its tokens come, each piece once its characters are whole. Only the last tokens are turned into text
// again, so that a long answer costs no more per token than a short one. For one answer; `end` returns what was held back.

/** Tokens that bytes of one character can have at most, and some: what is not text by then never will be. */
const mostHeldTokens = 16;

/** The text of one answer, piece by piece. */
export class TextPieces {
  readonly #decode: (tokens: readonly number[]) => string;
  /** The tokens before, which a token's text may depend on. */
  #printed: number[] = [];
  #news: number[] = [];

  /** `decode`: the text of some tokens in a row. `tokenizer.pieces()` makes one of a LlamaTokenizer. */
  constructor(decode: (tokens: readonly number[]) => string) {
    this.#decode = decode;
  }

  /** Takes the next token; returns the text that is whole by then and was not returned before. */
  push(token: number): string {
    this.#news.push(token);
    return this.#take(this.#news.length >= mostHeldTokens);
  }

  /** The text that was held back: characters whose last bytes never came, as U+FFFD. */
  end(): string {
    return this.#news.length === 0 ? '' : this.#take(true);
  }

  #take(isLast: boolean): string {
    const before = this.#decode(this.#printed);
    const text = this.#decode([...this.#printed, ...this.#news]);
    if (!isLast && (text.length <= before.length || text.endsWith('\uFFFD'))) return ''; // the last bytes are still to come
    [this.#printed, this.#news] = [this.#news, []];
    return text.slice(before.length);
  }
}
