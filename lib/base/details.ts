// The `details` of each error code: plain numbers and names, used in its message and read by tests, metrics and schedulers.
// Types only. A minor version may add a field; only a major version removes or renames one. Sizes are in bytes unless the
// name says otherwise; an optional field is absent where its value is unknown.

/** Which call of the driver or system failed, and what it returned. */
export interface DriverCall {
  /** The call's own name: `cuMemMap`, `mmap`. */
  readonly call: string;
  /** What it returned: a CUresult, an errno. 0 when the driver refused before calling. */
  readonly status: number;
  /** That status by name: `CUDA_ERROR_OUT_OF_MEMORY`, `ENOMEM`; empty when there is none. */
  readonly statusName: string;
}

/** Why a driver cannot be opened on this machine; native/driver.h has the same list as `Unavailable`. */
export type UnavailableReason =
  | 'no-library' | 'no-device' | 'stub-library' | 'init-failed' | 'no-such-device' | 'memory-refused' | 'forked';

/** Why a store over a network, which answers, does not do what a tier needs. */
export type RemoteRefusal =
  | 'credentials' | 'permission' | 'database' | 'protocol' | 'is-cluster' | 'no-cluster' | 'full' | 'other';

/**
 * What helps: `fix` the call · `free` (release or evict) and retry · `retry` the same call later · `restart` (close
 * this cache or the process) · `report` a bug of ours · `none` (an abort: nothing is wrong).
 */
export type Recovery = 'fix' | 'free' | 'retry' | 'restart' | 'report' | 'none';

/** The class of an error, by name. */
export type ErrorClass =
  | 'TypeError' | 'RangeError'
  | 'KvError' | 'KvStateError' | 'KvCapacityError' | 'KvDriverError' | 'KvAbortError';

/** What the catalogue says of one code. */
export interface CatalogueEntry<C extends ErrorCode = ErrorCode> {
  /** By name; a function when the details decide. */
  readonly class: ErrorClass | ((details: ErrorDetails[C]) => ErrorClass);
  readonly recovery: Recovery;
  /** Returns the message. Never throws, whatever the numbers are. */
  readonly template: (details: ErrorDetails[C]) => string;
}

/** The pass of an engine that failed or has not answered. */
interface EnginePass {
  /** Which of the engine's functions. */
  readonly call: 'prefill' | 'decode';
  /** Sequences in the pass. */
  readonly sequences: number;
}

/** The `details` of each code. docs/errors.md says what each means. */
export interface ErrorDetails {
  // Mistakes in the call
  KV_UNKNOWN_OPTION: {
    readonly owner: string;
    readonly option: string;
    readonly suggestion?: string | undefined;
    /** The options that exist there. */
    readonly known?: readonly string[] | undefined;
  };
  KV_INVALID_OPTION: {
    /**
     * `type`: another kind of value was needed (TypeError). `range`: the kind is right, the value is not
     * (RangeError).
     */
    readonly reason: 'type' | 'range';
    readonly owner: string;
    readonly option: string;
    /** Ends the sentence "`option` must be …". */
    readonly expected: string;
    readonly received: unknown;
    /** Whether `received` is what the caller's function returned. */
    readonly isReturned?: boolean | undefined;
    /** One whole sentence: what to do instead. */
    readonly hint?: string | undefined;
  };
  KV_INVALID_SHAPE: {
    readonly option: string;
    readonly value: number;
    /** Ends the sentence "`option` is value and …". */
    readonly problem: string;
    /** One whole sentence: what to do instead. */
    readonly hint: string;
  };
  KV_LENGTH_OUT_OF_RANGE: { readonly slot?: number | undefined; readonly tokens: number; readonly maxTokens: number };
  KV_ITEM_TOO_LARGE: { readonly kind: string; readonly tokens: number; readonly bytes: number; readonly budgetBytes: number };
  KV_COPY_OUT_OF_RANGE: { readonly call: string; readonly address: number; readonly bytes: number };

  // State
  KV_CLOSED: {
    /** Ends the sentence "Cannot …". */
    readonly operation: string;
    readonly owner: 'KvCache' | 'PagePool' | 'Driver' | 'Mapper' | 'MockDevice' | 'OnlineScheduler' | 'Kernels' | 'DenseKernels' |
      'DeviceMemory' | 'EncoderCache' | 'RedisTier' | 'DiskStore' | 'ModelServer' | 'BackgroundTokenizer' | 'LlamaEngine' | 'OnnxDecoder';
  };
  KV_SLOT_RELEASED: { readonly slot: number; readonly generation: number; readonly currentGeneration: number };
  KV_ROW_SHARED: {
    readonly call: string;
    readonly slot: number;
    readonly fromToken: number;
    readonly tokens: number;
  };
  KV_WINDOW_PASSED: {
    readonly slot: number;
    readonly length: number;
    /** Length that was asked for. */
    readonly tokens: number;
    /** Shortest length above it that is possible. */
    readonly nearestTokens: number;
    readonly rollbackTokens: number;
  };
  KV_WORK_QUEUED: {
    readonly slot: number;
    readonly operation: string;
    /** The engine's step that must be complete. */
    readonly step: number;
  };
  KV_SLOT_BUSY: {
    readonly slot: number;
    readonly operation: string;
    /** A batch that uses the slot; or the quarantine, which keeps a slot where the driver refused to undo a failed change. */
    readonly holder: 'a prepared batch' | 'another prepared batch' | 'the quarantine';
  };
  KV_BATCH_STATE: {
    /** `commit`, `prepare`. */
    readonly operation: string;
    /** Ends the sentence "it …": `is not prepared`. */
    readonly problem: string;
    /** One whole sentence: what to do. Default: the order in which a batch is used. */
    readonly hint?: string | undefined;
  };
  KV_SIDE_STATE: {
    /** `write`, `read`, `hand over`. */
    readonly operation: string;
    readonly sideTensor: string;
    /** Follows the colon: `token 12 was committed`. */
    readonly problem: string;
    /** One whole sentence: what to do instead. */
    readonly hint: string;
  };
  KV_HOLD_STATE: {
    /** Ends the sentence "Cannot …". */
    readonly operation: string;
    /** Ends the sentence "its hold …". */
    readonly problem: 'was released' | 'belongs to another cache' | 'has lost its rows, which were transferred through a view';
  };
  KV_VIEW_TRANSFERRED: { readonly slot: number; readonly buffers: number };
  KV_POLICY_REENTRY: {
    /** Ends the sentence "Cannot …". */
    readonly operation: string;
    /** The option that the policy was given as. */
    readonly policy: string;
  };
  KV_SELECTION_LOST: { readonly reason: 'absent' | 'corrupt' | 'timeout' | 'failed' | 'no-memory' };
  KV_SEQUENCE_LOSSY: { /** Ends the sentence "Cannot …". */ readonly operation: string };
  KV_PREFIX_IN_USE: { readonly sequences: number };
  KV_DRIVER_IN_USE: { readonly owner: 'Driver' | 'PagePool' | 'KvCache'; readonly users: number };

  // Capacity
  KV_NO_FREE_SLOT: {
    readonly slots: number;
    readonly retiringSlots: number;
    /** Where side slots are short: those that only hand-overs keep. */
    readonly leasedSlots?: number | undefined;
  };
  KV_ENCODER_FULL: {
    readonly kind: string;
    /** Bytes of the item; absent where the caller did not say how many rows it has. */
    readonly neededBytes?: number | undefined;
    /** Bytes of items that are held or being computed. */
    readonly heldBytes: number;
    readonly budgetBytes: number;
    /** Requests and items that wait for room. */
    readonly waiting: number;
  };
  KV_OUT_OF_PAGES: {
    readonly needRows: number;
    readonly haveRows: number;
    readonly needPages: number;
    readonly havePages: number;
    readonly budgetBytes: number;
    readonly pageBytes: number;
    /** The slots that cannot grow; empty when a new sequence was asked for. */
    readonly slots: readonly number[];
    readonly pagesPerRow: number;
    /** The side tensor that cannot grow; absent for K and V. A row of it is a page. */
    readonly sideTensor?: string | undefined;
  };
  KV_OUT_OF_DEVICE_MEMORY: {
    /** Bytes that a `DeviceMemory` asked for, outside every budget; absent where a cache asked, within its budget. */
    readonly memoryBytes?: number | undefined;
    readonly pageBytes: number;
    readonly createdPages: number;
    readonly budgetPages: number;
    readonly freeBytes?: number | undefined;
    /** Of the free bytes, those that `headroomBytes` keeps free; absent where it is 0. */
    readonly headroomBytes?: number | undefined;
  };
  KV_OUT_OF_ADDRESS_SPACE: {
    readonly bytes: number;
    readonly reservations?: number | undefined;
    readonly slots?: number | undefined;
    readonly maxTokens?: number | undefined;
    readonly limitBytes?: number | undefined;
  };
  KV_OUT_OF_MAPPINGS: {
    /** Mappings that the driver needs; where the kernel refused, those it has. */
    readonly neededMappings: number;
    /** The limit of all host drivers of the process together. */
    readonly limitMappings: number;
    /** Mappings of the process's other host drivers; absent where the limit is the driver's own `mappingLimit`. */
    readonly otherMappings?: number | undefined;
    /** The kernel itself refused: the limit is `vm.max_map_count`, and the rest of the process holds the missing mappings. */
    readonly isKernelLimit?: boolean | undefined;
    /** A view was refused: `neededMappings` counts the whole process. */
    readonly isForView?: boolean | undefined;
  };
  KV_TIMEOUT: {
    readonly timeoutMs: number;
    readonly waitedFor: string;
    /** One whole sentence: what to do. Default: raise `timeoutMs`. */
    readonly hint?: string | undefined;
    readonly pendingRows?: number | undefined;
  };

  // Serving
  KV_QUEUE_FULL: { readonly waitingRequests: number; readonly maxWaiting: number };
  KV_DEADLINE_EXCEEDED: { readonly deadlineMs: number; readonly generatedTokens: number; readonly maxNewTokens: number };
  KV_ENGINE_FAILED: EnginePass & {
    /** Ends the sentence "The engine's … failed: …". */
    readonly problem: string;
  };
  KV_ENGINE_STALLED: EnginePass & {
    /** How long the scheduler has waited. */
    readonly timeoutMs: number;
  };
  KV_CALLBACK_FAILED: {
    readonly option: 'sampler' | 'tokenizer' | 'releaseInput' | 'order';
    /** Ends the sentence "… threw an error instead of …". */
    readonly operation: string;
    /** The `arrival` of the requests that it was asked about: one, or the two to be compared. */
    readonly arrivals: readonly number[];
  };
  KV_STREAM_STATE: {
    /** Starts the sentence "Cannot … this stream". */
    readonly operation: string;
    /** Ends it: "it …". */
    readonly problem: string;
  };

  // Driver
  KV_DRIVER_UNAVAILABLE: DriverCall & {
    readonly driver: string;
    readonly reason: UnavailableReason;
    readonly device?: number | undefined;
  };
  KV_DRIVER_UNSUPPORTED: DriverCall & {
    readonly device: number;
    readonly deviceName?: string | undefined;
    readonly feature: string;
  };
  KV_DRIVER_TOO_OLD: DriverCall & {
    /** The entry point that is missing. */
    readonly missing: string;
    /** As the driver returns it: 10010 for 10.1. 0 when unknown. */
    readonly driverVersion: number;
  };
  KV_CUBLAS_UNAVAILABLE: {
    /** The entry point that the library lacks; absent when it could not be opened. */
    readonly missing?: string | undefined;
  };
  KV_KERNELS_REFUSED: DriverCall & {
    /** The log of the driver's compiler; may be empty. */
    readonly log: string;
  };
  KV_COMMAND_FAILED: {
    /** How many commands were queued before it since the stream was last known to be done, counting from 0. */
    readonly command: number;
  };
  KV_DRIVER_CALL_FAILED: DriverCall & {
    readonly address?: number | undefined;
    readonly bytes?: number | undefined;
    readonly slot?: number | undefined;
  };
  KV_DRIVER_LOST: DriverCall & { readonly driver: string };
  KV_DRIVER_MISUSE: DriverCall & {
    /** Or the handle of a stream or an event, for a call that works on one. */
    readonly address: number;
    readonly bytes: number;
  };

  // Tiers over a network
  KV_TIER_UNREACHABLE: {
    /** The tier's `name`. */
    readonly tier: string;
    /** Without user and password. */
    readonly address: string;
    /** What happened, as the client says it. */
    readonly problem: string;
  };
  KV_TIER_REFUSED: {
    readonly tier: string;
    readonly address: string;
    readonly reason: RemoteRefusal;
    /** What the store replied. */
    readonly reply: string;
  };
  KV_TIER_DAMAGED: {
    readonly tier: string;
    /** The store's key of the block. */
    readonly key: string;
    /** Ends the sentence "the value …". */
    readonly problem: string;
  };
  KV_TIER_STALLED: {
    /** The names of those that did not answer. */
    readonly tiers: readonly string[];
    /** Calls of theirs that were not answered. */
    readonly calls: number;
    /** How long none was. */
    readonly timeoutMs: number;
  };

  // Disk store
  KV_STORE_UNAVAILABLE: DriverCall & { readonly path: string };
  KV_STORE_LOCKED: {
    readonly path: string;
    /** The process that has it open, 0 where unknown. */
    readonly process: number;
  };
  KV_STORE_FOREIGN: { readonly path: string };
  KV_STORE_VERSION: {
    readonly path: string;
    /** The format that it was written in. */
    readonly version: number;
    /** The one that this version has. */
    readonly latestVersion: number;
  };
  KV_STORE_FAILED: DriverCall & { readonly path: string };

  // Addon
  KV_VIEW_FORBIDDEN: { readonly status: number };
  KV_ADDON_NOT_FOUND: {
    readonly platform: string;
    readonly nodeVersion: string;
    readonly tried: readonly { readonly path: string; readonly reason: string }[];
  };
  KV_ADDON_MISMATCH: { readonly addonVersion: string; readonly packageVersion: string };

  // Files and packages that the commands use
  KV_TRACE_INVALID: {
    readonly source: string;
    readonly line: number;
    readonly problem: string;
    /** Whether the lines after it can be read, so that `--skip-invalid` helps. */
    readonly isSkippable: boolean;
  };
  KV_CONFIG_INVALID: { readonly source: string; readonly problem: string; readonly hint: string };
  KV_MODEL_INVALID: {
    /** The whole message: the file, what is wrong there, what to do. */
    readonly problem: string;
  };
  KV_ONNX_UNAVAILABLE: {
    /** Why no library of onnxruntime can be used. */
    readonly problem: string;
  };
  KV_ONNX_FAILED: {
    /** Function of onnxruntime's C API. */
    readonly call: string;
    /** Its code. */
    readonly status: number;
    /** Its message. */
    readonly problem: string;
  };
  KV_OUTPUT_FAILED: { readonly file: string; readonly problem: string };
  KV_DEPENDENCY_MISSING: {
    /** One package, or several with spaces between them. */
    readonly dependency: string;
    /** Starts the sentence "… needs the package". */
    readonly purpose: string;
  };

  // Server: what its clients' requests are refused for
  KV_REQUEST_INVALID: {
    readonly reason: 'malformed' | 'too-large' | 'headers-too-large' | 'too-slow' | 'media-type' | 'not-found' |
      'method' | 'expectation' | 'unauthorized' | 'forbidden' | 'too-many';
    /** Ends the sentence "The request was refused: …". */
    readonly problem: string;
    /** One whole sentence: what to do instead. */
    readonly hint: string;
  };
  KV_SERVER_UNREACHABLE: {
    /** The address that was asked. */
    readonly url: string;
    /** Ends the sentence "The server at … cannot be watched: …". */
    readonly problem: string;
  };
  KV_NOT_SUPPORTED: {
    /** The parameter of the request. */
    readonly option: string;
    /** Ends the sentence "`option` is not supported: …". */
    readonly problem: string;
    /** One whole sentence: what to do instead. */
    readonly hint: string;
  };

  // Stopping and bugs
  KV_ABORTED: { /** Starts the sentence "… was aborted". */ readonly operation: string };
  KV_INTERNAL: {
    /** One sentence without its full stop: what does not hold. */
    readonly problem: string;
    readonly call?: string | undefined;
    readonly what?: number | undefined;
    readonly howMany?: number | undefined;
  };
}

/** Every code of this package; stable within a major version. */
export type ErrorCode = keyof ErrorDetails;
