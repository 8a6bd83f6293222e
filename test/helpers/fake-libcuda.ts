// Driver libraries of several ages over the simulated device (scripts/build-fake-libcuda.cjs), and what they need: a C++ compiler.

import { spawnSync } from 'node:child_process';
import * as path from 'node:path';

const root = path.resolve(__dirname, '..', '..');

/** Builds them, unless they are there. */
export function buildFakeLibcuda(): void {
  const { status, stderr } = spawnSync(process.execPath, [path.join(root, 'scripts', 'build-fake-libcuda.cjs')]);
  if (status !== 0) throw new Error(String(stderr));
}

/** The library of a driver of the CUDA version. */
export function fakeLibcuda(version = 13_000): string {
  return path.join(root, 'build-test', 'fake-libcuda', String(version), 'libcuda.so.1');
}

/** A fake onnxruntime (test/native/fake_onnxruntime.cc), built with them. */
export function fakeOnnxruntime(): string {
  return path.join(root, 'build-test', 'fake-libcuda', 'libonnxruntime.so');
}
