// The tarball that `npm run release` makes of this clone, with what is not committed. Each test file makes its own.

import { spawnSync } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import * as path from 'node:path';

import { Consumer, root } from './consumer.js';

export const here = `${process.platform}-${process.arch}`;

export interface Release {
  readonly tarball: string;
  readonly size: number;
  readonly files: readonly { readonly path: string; readonly mode: number; readonly size: number }[];
  /** Platforms with a prebuilt addon: this one, and ARM64 where its cross compiler is installed. */
  readonly platforms: readonly string[];
  readonly remove: () => void;
}

export function makeRelease(): Release {
  const folder = new Consumer();
  const canCross = process.arch === 'x64' && spawnSync('aarch64-linux-gnu-g++', ['--version']).status === 0;
  const platforms = canCross ? [here, 'linux-arm64'] : [here];
  folder.run(process.execPath, [
    path.join(root, 'scripts', 'release.mjs'), '--dirty', '--to', folder.folder, ...platforms.flatMap((platform) => ['--platform', platform]),
  ]);
  const packed = JSON.parse(readFileSync(path.join(folder.folder, readdirSync(folder.folder).find((name) => name.endsWith('.tgz.json'))!), 'utf8')) as Omit<Release, 'tarball'> & { filename: string };
  return {
    tarball: path.join(folder.folder, packed.filename), size: packed.size, files: packed.files, platforms, remove: () => folder.remove(),
  };
}
