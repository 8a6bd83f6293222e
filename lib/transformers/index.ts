// virtual-kv/transformers: programs on transformers.js, unchanged, with K and V in this package's memory.

export { install, type InstallOptions, type TransformersMemory } from './install.js';
export type { ForwardTotals } from './forward-loop.js';
