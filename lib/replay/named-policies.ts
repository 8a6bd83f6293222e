// The eviction policies that come with the package, by the names that commands and results use, the default first. Each with
// its defaults.

import { adaptive, importance, lfu, lru, priority, slru, type EvictionPolicyFactory } from '../index.js';

export const evictionPolicyNames = ['adaptive', 'lru', 'slru', 'lfu', 'importance', 'priority'] as const;
export type EvictionPolicyName = (typeof evictionPolicyNames)[number];

const factories: Readonly<Record<EvictionPolicyName, () => EvictionPolicyFactory>> = { adaptive, lru, slru, lfu, importance, priority };

export function evictionPolicyNamed(name: EvictionPolicyName): EvictionPolicyFactory {
  return factories[name]();
}
