// RowFollower: what keeps something beside K and V for each row of a cache (a side tensor, a copy in a lower tier), and must follow
// the rows in lock-step. The registry of rows calls it synchronously, once per change, in the order in which the changes took effect;
// a change that the driver refused is not told. A follower must not throw and must not call the cache.

/**
 * Rows are told in groups, the unit of sharing: `group` is the place in the slot (its rows from group · groupRows on), `id` the
 * group's number, unique until `dropped`. A group without a number is its slot's alone.
 */
export interface RowFollower {
  /** The slot's group has the number from now on, with its first `rows` rows; told again when more or fewer of its rows belong to it. */
  registered(id: number, slot: number, group: number, rows: number): void;
  /** Another slot maps the number's rows too, at the same place. */
  shared(id: number, slot: number, group: number): void;
  /** The text's tokens up to `tokens` that lie in the number's group were copied to the same place of a slot, into rows of its own. */
  copied(id: number, slot: number, group: number, tokens: number): void;
  /** The slot no longer has the number at this place: it has other rows there, rows of its own, or none. */
  detached(id: number, slot: number, group: number): void;
  /** No slot and no cached text has the number any more. It may be given out again. */
  dropped(id: number): void;
}
