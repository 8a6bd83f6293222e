// NativeDriver: a driver of the addon, call by call, as TypeScript sees it. native/driver.h says what each call does.

export interface NativeDriverInfo {
  readonly kind: 'cuda' | 'host' | 'mock';
  /**
   * Whose work its memory and streams take: `cpu`: streams are threads of this process; `none`: of no kernels of this
   * package.
   */
  readonly kernels: 'cpu' | 'cuda' | 'none';
  readonly deviceName: string;
  readonly device: number;
  readonly driverVersion: number;
  readonly computeCapability: number;
  readonly granularityBytes: number;
  readonly defaultPageBytes: number;
  readonly mappingLimit: number;
  readonly hasStreams: boolean;
  readonly hasHostAccess: boolean;
  readonly hasZeroedPages: boolean;
  readonly hasReadableHoles: boolean;
  readonly hasMemory: boolean;
}

export interface NativeMemoryInfo {
  /** Device memory; host: the budget of the driver (`memoryBytes`). */
  readonly totalBytes: number;
  /** Bytes that new pages can take just now. */
  readonly freeBytes: number;
  readonly residentBytes: number;
  readonly livePages: number;
  readonly liveReservations: number;
  /** host: the driver's kernel mappings; elsewhere mapped pages. */
  readonly mappings: number;
  /** host: kernel mappings of all host drivers of the process, worker threads' included; elsewhere 0. */
  readonly processMappings: number;
}

/** One driver, call by call. Addresses and handles are bigints. */
export interface NativeDriver {
  info(): NativeDriverInfo;
  queryMemory(): NativeMemoryInfo;
  isLost(): boolean;
  close(): void;
  reserve(bytes: number, pageBytes: number): bigint;
  freeReservation(address: bigint, bytes: number): void;
  createPage(pageBytes: number, near: bigint): bigint;
  releasePage(page: bigint, pageBytes: number): void;
  map(address: bigint, pageBytes: number, page: bigint): void;
  setAccess(address: bigint, bytes: number): void;
  unmap(address: bigint, bytes: number): void;
  write(to: bigint, bytes: Uint8Array): void;
  read(into: Uint8Array, from: bigint): void;
  registerHost(address: bigint, bytes: number): void;
  unregisterHost(address: bigint): void;
  /** To an address of this process. */
  download(to: bigint, from: bigint, bytes: number, stream: bigint): void;
  /** From an address of this process. */
  upload(to: bigint, from: bigint, bytes: number, stream: bigint): void;
  copy(to: bigint, from: bigint, bytes: number, stream: bigint): void;
  fill(to: bigint, value: number, bytes: number, stream: bigint): void;
  createStream(): bigint;
  destroyStream(stream: bigint): void;
  synchronizeStream(stream: bigint): void;
  /** Not on host: the same on another thread. */
  synchronizeAsync(stream: bigint): Promise<void>;
  /**
   * Host: tells `Native.setOnStreamMark`'s function the id when what is queued on the stream so far is done or dropped.
   */
  markStream(stream: bigint, id: number, isAwaited: boolean): void;
  /** Host: a mark that was awaited, and so kept the event loop running, was told. */
  endAwait(): void;
  /** Host: drops the kernels' commands that have not begun. */
  cancelStream(stream: bigint): void;
  recordEvent(stream: bigint): bigint;
  queryEvent(event: bigint): boolean;
  /** Blocks until the event is complete. */
  synchronizeEvent(event: bigint): void;
  /** Work queued on the stream from here on runs after the event. */
  waitEvent(stream: bigint, event: bigint): void;
  destroyEvent(event: bigint): void;
  /** Host only, for tests: makes the nth next system call of a kind fail with an errno. */
  failCall(kind: string, nth: number, errno: number): void;
}
