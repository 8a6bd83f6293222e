// TokenBytes: the bytes of tokens by their names in a tokenizer.json: byte-level tokens write a character for each byte
// (GPT-2's table), others are text, or `<0x0A>` for a byte that is no text.

import type { TokenizerFile } from './special-tokens.js';

export class TokenBytes {
  /** [character]: its byte; undefined: names are text. */
  readonly #table: ReadonlyMap<string, number> | undefined;
  /** Names that are text whatever the others are. */
  readonly #added: ReadonlySet<string>;

  constructor(file: TokenizerFile) {
    this.#table = JSON.stringify([file.decoder, file.pre_tokenizer]).includes('"ByteLevel"') ? byteTable() : undefined;
    this.#added = new Set((file.added_tokens ?? []).map(({ content }) => content));
  }

  /** Undefined: its text says it, or it has none. */
  of(name: string): Uint8Array | undefined {
    if (this.#table === undefined) {
      const byte = /^<0x([\dA-F]{2})>$/i.exec(name)?.[1];
      return byte === undefined ? undefined : Uint8Array.of(Number.parseInt(byte, 16));
    }
    const bytes = this.#added.has(name) ? [undefined] : [...name].map((character) => this.#table!.get(character));
    return bytes.includes(undefined) ? undefined : Uint8Array.from(bytes as number[]);
  }
}

/** Printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on. */
function byteTable(): Map<string, number> {
  const table = new Map<string, number>();
  let next = 0x100;
  for (let byte = 0; byte < 256; byte += 1) {
    const isPrintable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
    table.set(String.fromCharCode(isPrintable ? byte : next++), byte);
  }
  return table;
}
