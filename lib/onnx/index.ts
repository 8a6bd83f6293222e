// virtual-kv/onnx: a decoder in ONNX as an engine over a cache, computed by the user's own onnxruntime.

export { OnnxDecoder, type OnnxDecoderOptions, type OnnxModelOptions } from './decoder.js';
export { readModelFolder, type ModelFolder } from './model-folder.js';
export type { OnnxEngine, OnnxOutput } from './engine.js';
