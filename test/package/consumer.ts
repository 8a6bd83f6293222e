// Another project: a temporary folder with the packed package installed in it.

import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

export const root = path.resolve(__dirname, '..', '..');

export class Consumer {
  readonly folder = mkdtempSync(path.join(tmpdir(), 'virtual-kv-consumer-'));

  constructor() {
    this.write('package.json', JSON.stringify({ name: 'consumer', version: '1.0.0', private: true }));
  }

  write(file: string, text: string): void {
    const full = path.join(this.folder, file);
    mkdirSync(path.dirname(full), { recursive: true });
    writeFileSync(full, text);
  }

  read(file: string): string {
    return readFileSync(path.join(this.folder, file), 'utf8');
  }

  /** Runs a command in the folder and returns what it printed; throws with everything it said when it fails. */
  run(command: string, args: readonly string[], environment: NodeJS.ProcessEnv = {}): string {
    const { status, signal, stdout, stderr } = spawnSync(command, args, {
      cwd: this.folder, encoding: 'utf8', maxBuffer: 2 ** 28, env: { ...outerEnvironment(), ...environment },
    });
    if (status === 0) return stdout;
    throw new Error(`${command} ${args.join(' ')}: ${signal ?? `exit ${status}`}\n${stdout}${stderr}`);
  }

  /** Runs a TypeScript over the folder, by default the package's own, with no more in scope than docs/api.md asks for. */
  checkTypes(
    file: string, compilerOptions: Readonly<Record<string, unknown>>, typescript = path.join(root, 'node_modules', 'typescript'),
  ): void {
    this.write('tsconfig.json', JSON.stringify({
      compilerOptions: {
        target: 'ES2022', lib: ['ES2022'], strict: true, noEmit: true, skipLibCheck: false,
        types: ['node'], typeRoots: [path.join(root, 'node_modules', '@types')], ...compilerOptions,
      },
      files: [file],
    }));
    this.run(process.execPath, [path.join(typescript, 'bin', 'tsc'), '-p', '.']);
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** What npm told its scripts about this project must not reach the npm of another. */
function outerEnvironment(): NodeJS.ProcessEnv {
  const own = ['VKV_ADDON', 'VKV_BUILD', 'VKV_TEST_PACKAGE', 'NODE_ENV', 'INIT_CWD'];
  return Object.fromEntries(Object.entries(process.env).filter(([name]) =>
    !own.includes(name) && !/^npm_(package|lifecycle|command)/.test(name)));
}
