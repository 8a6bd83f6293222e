// The fake cuBLAS (test/native/fake_libcublas.cc), compiled when a test first asks for it.

import { spawnSync } from 'node:child_process';
import * as path from 'node:path';

const root = path.resolve(__dirname, '..', '..');
let isBuilt = false;

/** The path of a library: the whole one, or one without `cublasGemmEx`. */
export function fakeCublas(kind: 'whole' | 'without-gemm' = 'whole'): string {
  if (!isBuilt) {
    const { status, stderr } = spawnSync(process.execPath, [path.join(root, 'scripts', 'build-fake-libcuda.cjs'), '--cublas']);
    if (status !== 0) throw new Error(String(stderr));
    isBuilt = true;
  }
  return path.join(root, 'build-test', 'fake-libcuda', kind === 'whole' ? 'libcublas.so' : 'libcublas-without-gemm.so');
}

/** An entry point answers with a cublasStatus_t from here on; undefined: none does. */
export function failCublas(call?: string, status = 13): void {
  if (call === undefined) delete process.env['FAKE_LIBCUBLAS'];
  else process.env['FAKE_LIBCUBLAS'] = `${call}:${status}`;
}
