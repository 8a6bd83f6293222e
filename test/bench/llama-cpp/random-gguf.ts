// A GGUF file of SmolLM2-360M's shape with random weights, for two programs that read the same file. The weights are the same in each run:
// random bits of a counter cipher, with signs and fractions of their own and magnitudes of 2^-7 to 2^-6, so that nothing overflows.

import { createCipheriv } from 'node:crypto';
import { closeSync, openSync, renameSync, writeSync } from 'node:fs';

import { ggufHeader, padding, type GgufEntry } from '#internal/llama/gguf/gguf-header.js';
import { ggufTypeNumbers, type GgufTypeName } from '../../helpers/made-gguf.js';

export const shape = { layers: 32, hidden: 960, intermediate: 2_560, queryHeads: 15, kvHeads: 5, headDim: 64, vocabularyTokens: 49_152, maxTokens: 8_192 } as const;

const chunkElements = 2 ** 20;
/** Bytes of a block of 32 as Q8_0. */
const blockBytes = 34;

const bytesOf: Readonly<Record<GgufTypeName, (elements: number) => number>> = {
  F32: (elements) => 4 * elements, F16: (elements) => 2 * elements, BF16: (elements) => 2 * elements, Q8_0: (elements) => elements / 32 * blockBytes,
};

/** Makes random bits weights of the type. */
const weightsOf: Readonly<Record<GgufTypeName, (bits: Buffer) => void>> = {
  F32: (bits) => { mask(new Uint32Array(bits.buffer, bits.byteOffset, bits.length / 4), 0x807f_ffff, 0x3c00_0000); },
  F16: (bits) => { mask(new Uint16Array(bits.buffer, bits.byteOffset, bits.length / 2), 0x83ff, 0x2000); },
  BF16: (bits) => { mask(new Uint16Array(bits.buffer, bits.byteOffset, bits.length / 2), 0x807f, 0x3c00); },
  Q8_0: (bits) => { for (let at = 0; at < bits.length; at += blockBytes) bits.writeUInt16LE(0x0800, at); }, // steps of 2^-13
};

function mask(words: Uint16Array | Uint32Array, keep: number, set: number): void {
  for (let at = 0; at < words.length; at += 1) words[at] = (words[at]! & keep) | set;
}

/** Names and shapes, outputs first, in llama.cpp's order. */
function tensors(): [string, number[]][] {
  const { layers, hidden, intermediate, kvHeads, headDim, vocabularyTokens } = shape;
  const layer = (at: string): [string, number[]][] => [
    [`${at}.attn_norm.weight`, [hidden]], [`${at}.attn_q.weight`, [hidden, hidden]], [`${at}.attn_k.weight`, [kvHeads * headDim, hidden]],
    [`${at}.attn_v.weight`, [kvHeads * headDim, hidden]], [`${at}.attn_output.weight`, [hidden, hidden]], [`${at}.ffn_norm.weight`, [hidden]],
    [`${at}.ffn_gate.weight`, [intermediate, hidden]], [`${at}.ffn_up.weight`, [intermediate, hidden]], [`${at}.ffn_down.weight`, [hidden, intermediate]],
  ];
  return [
    ['token_embd.weight', [vocabularyTokens, hidden]], ...Array.from({ length: layers }, (_, at) => layer(`blk.${at}`)).flat(), ['output_norm.weight', [hidden]],
  ];
}

function entries(): GgufEntry[] {
  const { layers, hidden, intermediate, queryHeads, kvHeads, headDim, vocabularyTokens, maxTokens } = shape;
  return [
    ['general.architecture', 8, 'llama'], ['llama.block_count', 4, layers], ['llama.embedding_length', 4, hidden], ['llama.feed_forward_length', 4, intermediate],
    ['llama.attention.head_count', 4, queryHeads], ['llama.attention.head_count_kv', 4, kvHeads], ['llama.attention.key_length', 4, headDim],
    ['llama.attention.value_length', 4, headDim], ['llama.rope.dimension_count', 4, headDim], ['llama.context_length', 4, maxTokens],
    ['llama.attention.layer_norm_rms_epsilon', 6, 1e-5], ['llama.rope.freq_base', 6, 1e5],
    ['tokenizer.ggml.model', 8, 'gpt2'], ['tokenizer.ggml.pre', 8, 'gpt-2'], ['tokenizer.ggml.merges', 9, 8, ['t o']], ['tokenizer.ggml.bos_token_id', 4, 0],
    ['tokenizer.ggml.eos_token_id', 4, 1], ['tokenizer.ggml.tokens', 9, 8, Array.from({ length: vocabularyTokens }, (_, token) => `token ${token}`)],
  ];
}

/** Writes the file; it is there whole, or not at all. Returns the bytes of its tensors. */
export function writeRandomGguf(file: string, type: GgufTypeName): number {
  const all = tensors().map(([name, extents]) => {
    const own = extents.length === 1 ? 'F32' : type;
    return { name, shape: extents, own, type: ggufTypeNumbers[own], bytes: bytesOf[own](extents.reduce((product, extent) => product * extent)) };
  });
  const random = createCipheriv('aes-128-ctr', Buffer.alloc(16, 7), Buffer.alloc(16));
  const into = openSync(`${file}.new`, 'w');
  writeSync(into, ggufHeader(entries(), all));
  for (const { own, bytes } of all) {
    const chunk = bytesOf[own](chunkElements);
    for (let done = 0; done < bytes; done += chunk) {
      const bits = Buffer.from(random.update(Buffer.alloc(Math.min(chunk, bytes - done))));
      weightsOf[own](bits);
      writeSync(into, bits);
    }
    writeSync(into, Buffer.alloc(padding(bytes)));
  }
  closeSync(into);
  renameSync(`${file}.new`, file);
  return all.reduce((sum, { bytes }) => sum + bytes, 0);
}
