// virtual-kv/llama: the reference engine: a Hugging Face folder (Llama, Mistral, Qwen, Gemma) as an engine over a cache, and its tokenizer.

export { BackgroundTokenizer, type BackgroundTokenizerOptions } from './background-tokenizer.js';
export type { LayerAttention, LlamaConfig, RopeScaling } from './config.js';
export { readLlamaConfig } from './config.js';
export { LlamaEngine, type LlamaOutput } from './engine.js';
export type { LlamaEngineOptions } from './engine-options.js';
export { givenTo, type GivenRows } from './engine-options.js';
export { LlamaModel, type LlamaLoadOptions, type LlamaModelOptions } from './model.js';
export type { LlamaPass } from './pass-reader.js';
export type { CopiedFile, CopyReason } from './weight-file.js';
export { LlamaTokenizer, TextPieces } from './tokenizer.js';
export type { ChatMessage, EncodeChatOptions, EncodeOptions } from './tokenizer-arguments.js';
