// Absences: why a tier does not have blocks that it had or was offered: for an operator's questions. Bounded: the oldest is forgotten.

import type { PutRefusal } from './tier.js';

/**
 * Why a tier does not have a block: `evicted`: it went to make room · `corrupt`: it was not what was stored, and was dropped · `lost`: the
 * store no longer had it · `full`, `busy`, `failed`: it was refused · `seen-once`: the tier takes what was seen more often ·
 * `part-of-block`: the tier takes whole blocks only · `out-of-service`: the tier is not open · `never-offered`: its text was never finished
 * here, was evicted from the device before it was read, or it is not known any more.
 */
export type BlockAbsence = PutRefusal | 'evicted' | 'corrupt' | 'lost' | 'seen-once' | 'part-of-block' | 'out-of-service' | 'never-offered';

const most = 4096;

export class Absences {
  readonly #reasons = new Map<string, BlockAbsence>();

  note(key: string, reason: BlockAbsence): void {
    this.#reasons.delete(key);
    this.#reasons.set(key, reason);
    if (this.#reasons.size <= most) return;
    const [oldest] = this.#reasons.keys();
    this.#reasons.delete(oldest!);
  }

  of(key: string): BlockAbsence | undefined {
    return this.#reasons.get(key);
  }

  clear(): void {
    this.#reasons.clear();
  }
}
