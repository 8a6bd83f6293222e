// Compiles the live page of the server, lib/server/page, for the browser, and puts its HTML and CSS beside it: dist/server/page. After
// dist/, whose declarations it reads. `npm run build:ts`, prepare.mjs and prepack.mjs run it.

import { spawnSync } from 'node:child_process';
import { copyFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const from = path.join(root, 'lib', 'server', 'page');
const to = path.join(root, 'dist', 'server', 'page');

const { status } = spawnSync(process.execPath, [path.join(root, 'node_modules', 'typescript', 'bin', 'tsc'), '-p', from, '--noEmitOnError', ...process.argv.slice(2)], { stdio: 'inherit' });
if (status !== 0) process.exit(status ?? 1);
for (const name of readdirSync(from)) if (/\.(html|css)$/.test(name)) copyFileSync(path.join(from, name), path.join(to, name));
