// ExternalKey: names a block of K and V, with everything before it, in stores outside this process: a disk, another machine, an
// object store. Collision-resistant, so that a store may trust a key it finds; the same in every process, on both byte orders,
// and under every layout and page size. It hides nothing that can be guessed: to keep others from finding a tenant's text by
// trying, give it a salt that cannot be guessed.
//
// Version 1. All numbers are 32-bit words, least significant byte first; strings, domains and blocks as in prefix/router/block-keys.ts.
//
//   root   SHA-256 of: the string "virtual-kv external key", 1, the tensors of this worker (their number; of each its layer,
//          role, heads, dim and dtype), the domain, the tokens of a block
//   key    SHA-256 of: the key of the block before (the root for the first), the block
//
// What is not in it: which share of the heads this worker has (`parallel.tensor` workers have equal shapes) and whose weights
// computed K and V. A namespace names both.

import { createHash } from 'node:crypto';

import type { PrefixDomainParts } from '../prefix/domain.js';
import type { ItemNames } from '../prefix/prompt-encoder.js';
import { KeyWords } from '../prefix/router/block-keys.js';
import type { TensorSpec } from '../layout/model-shape.js';

const magic = 'virtual-kv external key';
const version = 1;

export interface ExternalKeyParts {
  /** Tensors of this worker, in layer order. */
  readonly tensors: readonly TensorSpec[];
  readonly domain: PrefixDomainParts;
  readonly text: Int32Array;
  readonly blockTokens: number;
  /** Names of the items in the text. */
  readonly names?: ItemNames | undefined;
}

/** The keys of all whole blocks of a text, 64 hexadecimal digits each. */
export function externalKeys({ tensors, domain, text, blockTokens, names }: ExternalKeyParts): string[] {
  const words = new KeyWords().addString(magic).add(version).add(tensors.length);
  for (const { layer, role, heads, dim, dtype } of tensors) words.add(layer).addString(role).add(heads).add(dim).addString(dtype);
  let parent = createHash('sha256').update(bytesOf(words.addDomain(domain).add(blockTokens))).digest();
  const keys: string[] = [];
  for (let start = 0; start + blockTokens <= text.length; start += blockTokens) {
    const block = bytesOf(words.clear().addBlock(text, start, blockTokens, names));
    parent = createHash('sha256').update(parent).update(block).digest();
    keys.push(parent.toString('hex'));
  }
  return keys;
}

function bytesOf({ words, count }: KeyWords): Uint8Array {
  const bytes = new DataView(new ArrayBuffer(4 * count));
  for (let at = 0; at < count; at += 1) bytes.setInt32(4 * at, words[at]!, true);
  return new Uint8Array(bytes.buffer);
}
