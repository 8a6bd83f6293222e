// TenantBytes: how many bytes of a tier the text of each tenant takes, and which of its blocks go when that is too
// many: those used longest ago, whatever the tier prefers otherwise. Text that the tier has from before counts for
// itself until a request of its tenant uses it: keys do not tell whose it is.
//
// Invariant: of one tenant a block was used no earlier than the blocks behind it, as in the tier.

import type { PrefixDomain } from '../prefix/domain.js';
import type { StoredBlock } from './stored-texts.js';

/** What a tenant has. */
interface Owned {
  bytes: number;
  /** Bytes that are on their way to the tier. */
  pendingBytes: number;
  /** Of what was its own before it was known to be this tenant's, by root: none of it was used since. */
  readonly adopted: Map<StoredBlock, Map<StoredBlock, number>>;
  /** Bytes that each other block takes, the one used longest ago first. */
  readonly blocks: Map<StoredBlock, number>;
}

/** The owner of a domain's text. */
export function ownerOf({ tenant }: PrefixDomain): string {
  return tenant === undefined ? 'no tenant' : `tenant ${tenant}`;
}

export class TenantBytes {
  /** Bytes that a tenant may have. */
  readonly limitBytes: number;
  /** The tier's bit in `StoredBlock.tiers`. */
  readonly #tier: number;
  readonly #owners = new Map<string, Owned>();

  /** @param number The tier's. */
  constructor(limitBytes: number, number: number) {
    this.limitBytes = limitBytes;
    this.#tier = 1 << number;
  }

  /** Bytes of all tenants. */
  get bytes(): number {
    return [...this.#owners.values()].reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Bytes of the tenant whose text the block is, with those that are on their way. */
  bytesOf(block: StoredBlock): number {
    const owned = this.#owners.get(block.root.owner);
    return owned === undefined ? 0 : owned.bytes + owned.pendingBytes;
  }

  /** The block is on its way to the tier, until `arrived`. */
  coming(block: StoredBlock, bytes: number): void {
    this.#ownedBy(block).pendingBytes += bytes;
  }

  /** The block is no longer on its way: it was added, or refused. */
  arrived(block: StoredBlock, bytes: number): void {
    this.#ownedBy(block).pendingBytes -= bytes;
    this.#tidy(block);
  }

  /** The tier has the block from now on. */
  add(block: StoredBlock, bytes: number): void {
    const owned = this.#ownedBy(block);
    owned.blocks.set(block, bytes);
    owned.bytes += bytes;
  }

  /** The tier no longer has the block. */
  remove(block: StoredBlock, bytes: number): void {
    const owned = this.#ownedBy(block);
    forget(owned, block);
    owned.bytes -= bytes;
    this.#tidy(block);
  }

  /** The block was used: it is the latest of its tenant. */
  use(block: StoredBlock, bytes: number): void {
    const owned = this.#ownedBy(block);
    forget(owned, block);
    owned.blocks.set(block, bytes);
  }

  /** Text below `root` is `owner`'s from now on; it was its own. It was used before what `owner` has used. */
  rename(root: StoredBlock, owner: string): void {
    const found = this.#owners.get(root.owner);
    if (found === undefined) return;
    this.#owners.delete(root.owner);
    const known = this.#owners.get(owner);
    if (known === undefined) {
      this.#owners.set(owner, found);
      return;
    }
    known.bytes += found.bytes;
    known.pendingBytes += found.pendingBytes;
    if (found.blocks.size > 0) known.adopted.set(root, found.blocks);
  }

  /**
   * The blocks of the tenant whose text `coming` is, the one used longest ago first, that take `bytes` bytes, of those
   * that `skips` does not say so of and behind which none is left; none where they are too few.
   */
  oldest(coming: StoredBlock, bytes: number, skips: (block: StoredBlock) => boolean): StoredBlock[] {
    const owned = this.#owners.get(coming.root.owner);
    if (owned === undefined) return [];
    const found = new Set<StoredBlock>();
    let freed = 0;
    for (const blocks of [...owned.adopted.values(), owned.blocks]) {
      for (const [block, its] of blocks) {
        if (freed >= bytes) return [...found];
        if (block.children.some((child) => (child.tiers & this.#tier) !== 0 && !found.has(child)) || skips(block)) {
          continue;
        }
        found.add(block);
        freed += its;
      }
    }
    return freed >= bytes ? [...found] : [];
  }

  #ownedBy({ root: { owner } }: StoredBlock): Owned {
    let owned = this.#owners.get(owner);
    if (owned === undefined) {
      this.#owners.set(owner, owned = { bytes: 0, pendingBytes: 0, adopted: new Map(), blocks: new Map() });
    }
    return owned;
  }

  #tidy({ root: { owner } }: StoredBlock): void {
    const owned = this.#owners.get(owner)!;
    if (owned.bytes === 0 && owned.pendingBytes === 0) this.#owners.delete(owner);
  }
}

function forget({ adopted, blocks }: Owned, block: StoredBlock): void {
  if (blocks.delete(block)) return;
  const its = adopted.get(block.root);
  its?.delete(block);
  if (its?.size === 0) adopted.delete(block.root);
}
