// Loaded before a command (`NODE_OPTIONS=--require`): stderr is a terminal to it, and a collection of garbage is over once the progress bar
// has shown what it gave back.

import { DiskStore } from '#internal/store/disk-store.js';

Object.defineProperty(process.stderr, 'isTTY', { value: true });

const shown = new Promise<void>((resolve) => {
  const write = process.stderr.write.bind(process.stderr) as (text: string) => boolean;
  process.stderr.write = ((text: string): boolean => {
    if (/ [1-9][\d.]* [KMG]?i?B of .* removed given back/.test(text)) resolve();
    return write(text);
  }) as typeof process.stderr.write;
});

const { gc } = DiskStore.prototype;
DiskStore.prototype.gc = async function gcUntilShown(this: DiskStore): ReturnType<typeof gc> {
  const result = await gc.call(this);
  await shown;
  return result;
};
