// virtual-kv/server: a model behind OpenAI's HTTP API.

export type { ApiKey } from './api-keys.js';
export { ModelServer, type ListenOptions } from './model-server.js';
export type { ModelServerOptions, ServedEncodeOptions, ServedTokenizer } from './server-options.js';
export { sessionPolicy, type SessionHint } from './sessions.js';
