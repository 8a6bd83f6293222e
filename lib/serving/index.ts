// What of lib/serving is public.

export type { Engine, EngineOutput, EnginePass } from './engine.js';
export type { AnswerTokenizer, TokenPieces } from './answer-text.js';
export type { FinishReason, GenerationAdmission, GenerationResult } from './generation-result.js';
export type { LikelyToken, TokenLogProbability } from './log-probabilities.js';
export { NaiveScheduler } from './naive.js';
export { OfflineScheduler, type OfflineSchedulerOptions } from './offline.js';
export { OnlineScheduler, type OnlineSchedulerOptions } from './online.js';
export type { ServingTotals } from './open-requests.js';
export { ServingTimes } from './serving-times.js';
export { TimeHistogram } from '../base/time-histogram.js';
export type { GenerationOutcome } from './outcome.js';
export type { GenerationRequest } from './request.js';
export type { SampledText } from './sampled-text.js';
export { greedy, randomSampler, type Sampler, type SamplerOptions } from './sampling.js';
export type { SchedulerOptions } from './scheduler-options.js';
export { TokenStream } from './token-stream.js';
