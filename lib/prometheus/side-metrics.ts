// The metrics of a cache's side tensors: all of them together, as `sideCounts` has them. Of a cache without any they are 0.

import type { SideCounts } from '../index.js';
import { metricsOf, type MetricDefinition } from './metric-set.js';

/** What they are read from. */
export interface SideSample {
  readonly side: SideCounts;
}

const { gauge, gauges, counter } = metricsOf<SideSample>();

export const sideMetrics: readonly MetricDefinition<SideSample>[] = [
  gauge('side_budget_bytes', 'Most bytes of the pages of all side tensors together.', ({ side }) => side.budgetBytes),
  gauges('side_bytes', 'use', 'Bytes of side tensors: of running sequences and hand-overs, only cached, or lost to the driver.', ({ side }) => ({
    held: side.heldBytes, cached: side.usedBytes - side.heldBytes - side.quarantinedBytes, quarantined: side.quarantinedBytes,
  })),
  gauge('side_leased_slots', 'Released sequences whose side tensors hand-overs keep.', ({ side }) => side.leasedSlots),
  gauge('side_registered_bytes', 'Bytes in the memory of the CPU that are registered with the device.', ({ side }) => side.registeredBytes),
  counter('side_pageable_bytes_total', 'Bytes of rows that the device copied to memory which it would not register.', ({ side }) => side.pageableBytes),
];
