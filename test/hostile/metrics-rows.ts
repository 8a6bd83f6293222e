// Rows of the hostile table for metrics. What was registered is taken back at once.

import { createRequire } from 'node:module';

import { registerMetrics, registerServingMetrics } from 'virtual-kv/prometheus';

import type { Rows } from './table.js';

export const metricsRows: Readonly<Record<string, Rows>> = {
  registerMetrics: {
    call: ({ cache }) => ({
      run: (...given: Parameters<typeof registerMetrics>) => { registerMetrics(...given)(); },
      meant: [cache, { prefix: 'x_', labels: { a: 'b' } }, createRequire(__filename)],
    }),
  },
  registerServingMetrics: {
    call: (world) => ({
      run: (...given: Parameters<typeof registerServingMetrics>) => { registerServingMetrics(...given)(); },
      meant: [world.online(), { prefix: 'y_', labels: { a: 'b' } }, createRequire(__filename)],
    }),
  },
};
