// virtual-kv/transformers: programs on transformers.js, unchanged, with K and V in this package's memory.

export { install, TransformersMemory, type InstallOptions } from './install.js';
export type { ForwardTotals } from './forward-loop.js';
