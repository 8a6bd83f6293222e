// virtual-kv/llama: the reference engine: a Hugging Face folder (Llama, Mistral, Qwen2, Qwen3) as an engine over a cache, and its tokenizer.

export { BackgroundTokenizer, type BackgroundEncodeOptions, type BackgroundTokenizerOptions } from './background-tokenizer.js';
export type { LlamaConfig, RopeScaling } from './config.js';
export { readLlamaConfig } from './config.js';
export { LlamaEngine, type LlamaOutput, type LlamaPass } from './engine.js';
export type { LlamaEngineOptions } from './engine-options.js';
export { givenTo, type GivenRows } from './given-rows.js';
export { LlamaModel, type LlamaModelOptions } from './model.js';
export { TextPieces } from './text-pieces.js';
export { LlamaTokenizer, type ChatMessage, type EncodeOptions } from './tokenizer.js';
