// Sessions: what clients said of their conversations, by tenant and `prompt_cache_key`, as a level for the cache's eviction policy: text
// of a session that comes back soon stays longest, text of one that is done goes first. Only hints: memory that a running request needs
// is taken from any of them, and `sessionPolicy` lets a hint expire. Remembers the latest sessions only.

import { RecentMap } from '../base/recent-map.js';
import { priority, type EvictionPolicyFactory } from '../index.js';

/** What a client says of a session. */
export type SessionHint = 'back-soon' | 'done';

/** `priority` of requests. */
const levels = { done: 0, none: 1, 'back-soon': 2 } as const;

const mostSessions = 4_096;

/** How long after its last use text of a session that would come back soon is kept before that of others, in ms. */
const backSoonMs = 300_000;

/** The eviction policy that follows the hints: least recently used within a level; nothing is pinned. */
export function sessionPolicy(now: () => number = () => performance.now()): EvictionPolicyFactory {
  return priority({ lifetimeMs: (level) => (level === levels['back-soon'] ? backSoonMs : Infinity), now });
}

export class Sessions {
  readonly #hints = new RecentMap<SessionHint>(mostSessions);

  /** Notes the hint of a request, if it has one; returns the `priority` of the request. Without a key a hint is of this request only. */
  levelOf(tenant: string | undefined, key: string | undefined, hint: SessionHint | undefined): number {
    if (key === undefined) return levels[hint ?? 'none'];
    const name = JSON.stringify([tenant, key]);
    const latest = hint ?? this.#hints.get(name);
    this.#hints.delete(name);
    if (latest === undefined) return levels.none;
    if (latest === 'done' && hint === undefined) return levels.none; // it goes on after all
    this.#hints.set(name, latest);
    return levels[latest];
  }
}
