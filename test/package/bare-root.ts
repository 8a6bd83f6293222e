// A folder to chroot into that has Node.js, npm and a shell, and nothing else: no compiler, CMake, make or Python. All of it is copied
// from this machine. Where a process may not chroot, the programs run with a PATH of that folder's own instead, which hides the tools
// without taking them away; `isolation` says which it is.

import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

export interface Ended {
  readonly stdout: string;
  readonly seconds: number;
}

export class BareRoot {
  readonly root = mkdtempSync(path.join(tmpdir(), 'virtual-kv-bare-'));
  readonly isolation: 'chroot' | 'PATH';

  constructor() {
    for (const folder of ['bin', 'tmp', 'work', 'dev', 'proc', 'usr/bin', 'usr/lib/node_modules']) mkdirSync(path.join(this.root, folder), { recursive: true });
    this.#addProgram(realpathSync(process.execPath), 'bin/node');
    this.#addProgram(realpathSync('/bin/sh'), 'bin/sh');
    this.#addProgram('/usr/bin/env', 'usr/bin/env');
    cpSync(npmFolder(), path.join(this.root, 'usr/lib/node_modules/npm'), { recursive: true, dereference: true });
    for (const name of ['npm', 'npx']) {
      const script = path.join(this.root, 'usr/lib/node_modules/npm/bin', `${name}-cli.js`);
      chmodSync(script, 0o755);
      symlinkSync(`../usr/lib/node_modules/npm/bin/${name}-cli.js`, path.join(this.root, 'bin', name));
    }
    const devices = spawnSync('mknod', ['-m', '666', path.join(this.root, 'dev/null'), 'c', '1', '3']);
    const entered = spawnSync('chroot', [this.root, '/bin/node', '-e', "require('fs').writeFileSync('/dev/null', '')"]);
    this.isolation = devices.status === 0 && entered.status === 0 ? 'chroot' : 'PATH';
  }

  /** Copies a file or a folder of this machine to a place in the root. */
  add(from: string, to: string): void {
    cpSync(from, path.join(this.root, to), { recursive: true });
  }

  /** Runs a line of shell in `folder`, a path of the root. Throws with what it printed when it fails. */
  run(line: string, folder = '/work', environment: Readonly<Record<string, string>> = {}): Ended {
    const isInside = this.isolation === 'chroot';
    const at = (place: string): string => (isInside ? place : path.join(this.root, place));
    const env = { PATH: isInside ? '/bin:/usr/bin' : `${at('/bin')}:${at('/usr/bin')}`, HOME: at('/tmp'), NO_COLOR: '1', ...environment };
    const command = `cd ${at(folder)} && ${line.replaceAll('{root}', isInside ? '' : this.root)}`;
    const [program, args] = isInside ? ['chroot', [this.root, '/bin/sh', '-c', command]] as const : [at('/bin/sh'), ['-c', command]] as const;
    const startMs = performance.now();
    const { status, stdout, stderr } = spawnSync(program, args, { encoding: 'utf8', env: isInside ? { ...env, PATH: `/bin:/usr/bin:${process.env['PATH']}` } : env });
    if (status !== 0) throw new Error(`${line}: exit ${status}\n${stdout}${stderr}`);
    return { stdout, seconds: (performance.now() - startMs) / 1e3 };
  }

  remove(): void {
    rmSync(this.root, { recursive: true, force: true });
  }

  #addProgram(program: string, to: string): void {
    cpSync(program, path.join(this.root, to), { dereference: true });
    for (const [library] of execFileSync('ldd', [program], { encoding: 'utf8' }).matchAll(/\/\S+(?= \(0x)/g)) {
      const copy = path.join(this.root, library);
      if (existsSync(copy)) continue;
      mkdirSync(path.dirname(copy), { recursive: true });
      cpSync(realpathSync(library), copy);
    }
  }
}

/** The folder of the npm that runs the tests, or that is on the PATH. */
function npmFolder(): string {
  const script = process.env['npm_execpath'] ?? realpathSync(execFileSync('which', ['npm'], { encoding: 'utf8' }).trim());
  const folder = path.resolve(script, '..', '..');
  const { name } = JSON.parse(readFileSync(path.join(folder, 'package.json'), 'utf8')) as { name: string };
  if (name !== 'npm') throw new Error(`${folder} is not npm`);
  return folder;
}
