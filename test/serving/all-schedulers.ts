// The three schedulers, each as a function from requests to how they ended.

import { NaiveScheduler, OfflineScheduler, OnlineScheduler, type GenerationOutcome, type GenerationRequest, type SchedulerOptions } from 'virtual-kv';

import { collect } from './serving-bench.js';

type Answers = (options: SchedulerOptions, requests: readonly GenerationRequest[]) => Promise<GenerationOutcome[]>;

export const schedulers: Readonly<Record<'naive' | 'offline' | 'online', Answers>> = {
  naive: (options, requests) => collect(new NaiveScheduler(options).run(requests)),
  offline: (options, requests) => collect(new OfflineScheduler(options).run(requests)),
  online: async (options, requests) => {
    const scheduler = new OnlineScheduler(options);
    const results = await Promise.allSettled(requests.map((request) => scheduler.submit(request).result));
    return results.map((result, index) => ({ ...result, index }));
  },
};
