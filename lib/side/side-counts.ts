// SideCounts: what `KvCache.sideCounts` answers.

/** Bytes and pages of all side tensors, now. */
export interface SideCounts {
  /** What may be used at most. */
  readonly budgetBytes: number;
  /** Mapped, cached or set aside. */
  readonly usedBytes: number;
  /** Of `usedBytes`, those that running sequences and hand-overs have. What is neither held nor in quarantine is evicted when it is needed. */
  readonly heldBytes: number;
  /** Of `usedBytes`, those that the driver neither unmapped nor put back as they were: lost until the cache closes. */
  readonly quarantinedBytes: number;
  /** Side slots that only leases keep. */
  readonly leasedSlots: number;
  /** Bytes in the CPU's memory that are registered with the device, which copies there by itself. */
  readonly registeredBytes: number;
  /**
   * Bytes that came from the device to memory which it would not register (a limit on locked memory, say), since the cache was opened:
   * the same rows, but each such copy waits.
   */
  readonly pageableBytes: number;
}
