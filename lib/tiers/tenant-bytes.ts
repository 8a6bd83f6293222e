// TenantBytes: how many bytes of a tier the text of each tenant takes, and which of its blocks go when that is too many: those used longest ago, whatever
// the tier prefers otherwise. Text that the tier has from before counts for itself until a request of its tenant uses it: keys do not tell whose it is.
//
// Invariant: of one tenant a block was used no earlier than the blocks behind it, as in the tier.

import type { PrefixDomain } from '../prefix/domain.js';
import type { StoredBlock } from './stored-texts.js';

/** What a tenant has. */
interface Owned {
  bytes: number;
  /** Bytes that each block takes, the one used longest ago first. */
  readonly blocks: Map<StoredBlock, number>;
}

/** The owner of a domain's text. */
export function ownerOf({ tenant }: PrefixDomain): string {
  return tenant === undefined ? 'no tenant' : `tenant ${tenant}`;
}

export class TenantBytes {
  /** Bytes that a tenant may have. */
  readonly limitBytes: number;
  readonly #owners = new Map<string, Owned>();

  constructor(limitBytes: number) {
    this.limitBytes = limitBytes;
  }

  /** Bytes of all tenants. */
  get bytes(): number {
    return [...this.#owners.values()].reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Bytes of the tenant whose text the block is. */
  bytesOf(block: StoredBlock): number {
    return this.#owners.get(block.root.owner)?.bytes ?? 0;
  }

  /** The tier has the block from now on. */
  add(block: StoredBlock, bytes: number): void {
    const { owner } = block.root;
    let owned = this.#owners.get(owner);
    if (owned === undefined) this.#owners.set(owner, owned = { bytes: 0, blocks: new Map() });
    owned.blocks.set(block, bytes);
    owned.bytes += bytes;
  }

  /** The tier no longer has the block. */
  remove(block: StoredBlock, bytes: number): void {
    const owned = this.#owners.get(block.root.owner)!;
    owned.blocks.delete(block);
    owned.bytes -= bytes;
    if (owned.blocks.size === 0) this.#owners.delete(block.root.owner);
  }

  /** The block was used: it is the latest of its tenant. */
  use(block: StoredBlock, bytes: number): void {
    const { blocks } = this.#owners.get(block.root.owner)!;
    blocks.delete(block);
    blocks.set(block, bytes);
  }

  /** Text below `root` is `owner`'s from now on; it was its own. It was used before all that `owner` has. */
  rename(root: StoredBlock, owner: string): void {
    const found = this.#owners.get(root.owner);
    if (found === undefined) return;
    this.#owners.delete(root.owner);
    const known = this.#owners.get(owner);
    this.#owners.set(owner, { bytes: found.bytes + (known?.bytes ?? 0), blocks: new Map([...found.blocks, ...known?.blocks ?? []]) });
  }

  /** The blocks of the tenant whose text `coming` is, the one used longest ago first, up to `bytes` bytes, of those that `skips` does not say so of. */
  oldest(coming: StoredBlock, bytes: number, skips: (block: StoredBlock) => boolean): StoredBlock[] {
    const found = new Set<StoredBlock>();
    let freed = 0;
    for (const [block, its] of this.#owners.get(coming.root.owner)?.blocks ?? []) {
      if (freed >= bytes) break;
      if (skips(block) || block.children.some((child) => this.#has(child) && !found.has(child))) continue;
      found.add(block);
      freed += its;
    }
    return [...found];
  }

  #has(block: StoredBlock): boolean {
    return this.#owners.get(block.root.owner)?.blocks.has(block) === true;
  }
}
