// TenantQuota: how many rows of the pool each tenant has, and which of its texts goes first when that is too many: what
// it used longest ago, whatever the eviction policy prefers. Costs nothing when there is no quota.

import { enlarged } from '../base/typed-arrays.js';
import { NodeLists } from './eviction/node-lists.js';
import type { NodeTable } from './node-table.js';

export class TenantQuota {
  readonly limitRows: number;
  readonly #nodes: NodeTable;
  readonly #lists = new NodeLists(1);
  #rows = new Int32Array(1);

  constructor(nodes: NodeTable, limitRows: number) {
    this.#nodes = nodes;
    this.limitRows = limitRows;
  }

  rowsOf(tenant: number): number {
    return this.#rows[tenant] ?? 0;
  }

  add(node: number, rows: number): void {
    const tenant = this.#nodes.tenant[node]!;
    if (tenant >= this.#rows.length) this.#rows = enlarged(this.#rows, Math.max(tenant + 1, 2 * this.#rows.length));
    this.#rows[tenant]! += rows;
    this.#lists.add(node, tenant);
  }

  remove(node: number, rows: number): void {
    this.#rows[this.#nodes.tenant[node]!]! -= rows;
    this.#lists.remove(node);
  }

  /** A node of the pool lost rows, or got some (`rows` below 0), and stays. */
  shrink(tenant: number, rows: number): void {
    this.#rows[tenant]! -= rows;
  }

  split(upper: number, lower: number): void {
    this.#lists.addAfter(upper, lower);
  }

  /** The leaf that the tenant used longest ago, or -1. */
  oldest(tenant: number): number {
    return tenant < this.#lists.lists ? this.#lists.oldest(tenant) : -1;
  }
}
