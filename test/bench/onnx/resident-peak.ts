// ResidentPeak: watches another process's memory. A page that several sequences share is mapped in each of their
// slots, and counts for each in what the kernel calls resident; here it counts once.

import { readFileSync } from 'node:fs';

const intervalMs = 50;

export class ResidentPeak {
  readonly #pid: number;
  readonly #timer: NodeJS.Timeout;
  #bytes = 0;

  constructor(pid: number) {
    this.#pid = pid;
    this.#timer = setInterval(() => {
      this.#bytes = Math.max(this.#bytes, this.#now());
    }, intervalMs);
  }

  /** The most that was seen. */
  end(): number {
    clearInterval(this.#timer);
    return this.#bytes;
  }

  #now(): number {
    try {
      const status = this.#read('status');
      const [anonymous, file, shared] = ['RssAnon', 'RssFile', 'RssShmem'].map((name) => bytesOf(status, name)) as [
        number,
        number,
        number,
      ];
      if (anonymous + file + shared <= this.#bytes) return 0; // what comes now takes the kernel a while
      return anonymous + file + (shared === 0 ? 0 : bytesOf(this.#read('smaps_rollup'), 'Pss_Shmem'));
    } catch {
      return 0; // it has ended
    }
  }

  #read(name: string): string {
    return readFileSync(`/proc/${this.#pid}/${name}`, 'latin1');
  }
}

const bytesOf = (text: string, name: string): number =>
  1_024 * Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(text)?.[1] ?? 0);
