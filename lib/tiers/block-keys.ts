// BlockKeys: name a block of K and V, with everything before it, in stores outside this process: a disk, another
// machine, an object store. Collision-resistant, so that a store may trust a key it finds; the same in every process,
// on both byte orders, and under every layout and page size. It hides nothing that can be guessed: to keep others from
// finding a tenant's text by trying, give it a salt that cannot be guessed.
//
// Version 1. All numbers are 32-bit words, least significant byte first; strings, domains and blocks as in
// prefix/router/block-keys.ts.
//
//   root   SHA-256 of: the string "virtual-kv external key", 1, the tensors of this worker (their number; of each its
//   layer,
//          role, heads, dim and dtype), the domain, the tokens of a block
//   key    SHA-256 of: the key of the block before (the root for the first), the block
//
// What is not in it: which share of the heads this worker has (`parallel.tensor` workers have equal shapes) and whose
// weights computed K and V. What names a store's blocks besides says both (cache-tiers.ts); users of `externalKeys`
// have a namespace for it.

import { createHash } from 'node:crypto';

import type { TensorSpec } from '../base/dtypes.js';
import type { PrefixDomainParts } from '../prefix/domain.js';
import type { ItemNames } from '../prefix/prompt-encoder.js';
import { KeyWords } from '../prefix/router/block-keys.js';

const magic = 'virtual-kv external key';
const version = 1;

export class BlockKeys {
  /** Tokens of a whole block. */
  readonly blockTokens: number;
  readonly #tensors: readonly TensorSpec[];
  readonly #words = new KeyWords();

  /** @param tensors Those of this worker, in layer order. */
  constructor(tensors: readonly TensorSpec[], blockTokens: number) {
    this.#tensors = tensors;
    this.blockTokens = blockTokens;
  }

  /** What the first blocks of a domain have as their parent: 64 hexadecimal digits, as every key. */
  root(domain: PrefixDomainParts): string {
    const words = this.#words.clear().addString(magic).add(version).add(this.#tensors.length);
    for (const { layer, role, heads, dim, dtype } of this.#tensors) {
      words.add(layer).addString(role).add(heads).add(dim).addString(dtype);
    }
    return createHash('sha256').update(bytesOf(words.addDomain(domain).add(this.blockTokens))).digest('hex');
  }

  /** The key of text[start, start + count), a block behind that of `parent`. `names`: of the items in the text. */
  key(parent: string, text: Int32Array, start: number, count: number, names: ItemNames | undefined): string {
    const block = bytesOf(this.#words.clear().addBlock(text, start, count, names));
    return createHash('sha256').update(parent, 'hex').update(block).digest('hex');
  }

  /** The keys of all whole blocks of a text. */
  ofText(domain: PrefixDomainParts, text: Int32Array, names: ItemNames | undefined): string[] {
    const keys: string[] = [];
    let parent = this.root(domain);
    for (let start = 0; start + this.blockTokens <= text.length; start += this.blockTokens) {
      parent = this.key(parent, text, start, this.blockTokens, names);
      keys.push(parent);
    }
    return keys;
  }
}

function bytesOf({ words, count }: KeyWords): Uint8Array {
  const bytes = new DataView(new ArrayBuffer(4 * count));
  for (let at = 0; at < count; at += 1) bytes.setInt32(4 * at, words[at]!, true);
  return new Uint8Array(bytes.buffer);
}
