// TextListener: hears what text the index gains and loses, for those who keep something beside it: the events for routers,
// the memory of what was evicted. Called in the middle of a change: it reads the tree and changes nothing.

export interface TextListener {
  /** The node has new tokens from `from` to its end. */
  added(node: number, from: number): void;
  /** The node loses its tokens [from, to), which are still there; none is left when `from` is where it starts. */
  cut(node: number, from: number, to: number, reason: number): void;
  /** `upper` was cut off the front of `lower`. */
  split(upper: number, lower: number): void;
  /** `lower` now has the tokens of `upper`, its parent until now, in front of its own; `upper` is gone. */
  joined(upper: number, lower: number): void;
  /** The last tokens of the leaf lie in a row again, after they lay in none: a match finds them. */
  backed?(leaf: number): void;
}
