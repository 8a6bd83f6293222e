// BareLoop: a program of this folder that does once what a benchmark is held against, whenever it is asked to, and says what that took. It is
// started once: a fork makes each page of private memory fault at its next write, in the process that is measured.

import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import * as path from 'node:path';

const root = path.resolve(__dirname, '..', '..');

/** Bytes that were moved, and nanoseconds by the clock and of the CPU. */
export interface Taken {
  readonly bytes: number;
  readonly clockNs: number;
  readonly cpuNs: number;
}

export class BareLoop {
  readonly #child: ChildProcess;
  #heard: ((line: string) => void) | undefined;

  /** @param folder Where the compiled program may lie. @param flags Of the compiler, in place of -O2. */
  constructor(name: 'copy-loop' | 'pread-loop' | 'row-loop' | 'decode-loop', folder: string, given: readonly string[], flags: readonly string[] = ['-O2']) {
    const program = path.join(folder, name);
    const source = path.join(root, 'test', 'bench', `${name}.cc`);
    const { status, stderr } = spawnSync(process.env['CXX'] ?? 'c++', ['-std=c++20', ...flags, '-pthread', source, '-o', program], { encoding: 'utf8' });
    if (status !== 0) throw new Error(stderr);
    this.#child = spawn(program, given, { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child.stdout!.setEncoding('utf8').on('data', (line: string) => { this.#heard?.(line); });
  }

  async run(): Promise<Taken> {
    const line = await new Promise<string>((resolve, reject) => {
      this.#heard = resolve;
      this.#child.once('exit', (code) => { reject(new Error(`the bare loop ended with ${code}`)); });
      this.#child.stdin!.write('.');
    });
    this.#child.removeAllListeners('exit');
    const [bytes, clockNs, cpuNs] = line.split(' ').map(Number);
    return { bytes: bytes!, clockNs: clockNs!, cpuNs: cpuNs! };
  }

  close(): void {
    this.#child.stdin!.end();
  }
}
