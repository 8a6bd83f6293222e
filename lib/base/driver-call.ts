// DriverCall: in the details of every error that a call of the machine led to.

/** Which call of the driver or system failed, and what it returned. */
export interface DriverCall {
  /** The call's own name: `cuMemMap`, `mmap`. */
  readonly call: string;
  /** What it returned: a CUresult, an errno. 0 when the driver refused before calling. */
  readonly status: number;
  /** That status by name: `CUDA_ERROR_OUT_OF_MEMORY`, `ENOMEM`; empty when there is none. */
  readonly statusName: string;
}
