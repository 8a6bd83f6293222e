// Compiles dist/ as it is packed: afresh, so that nothing is in it whose source is gone; without source maps, whose sources are not in
// the package; and with comments only in the declarations, where editors show them; indented by tabs. Packs the sources that the addon is
// built from. npm runs it before it packs, and it refuses where `npm run release` did not ask for it: that tarball would have no addon. The next `npm test` or `npm start` in this clone compiles dist/ with its maps again.

import { spawnSync } from 'node:child_process';
import { chmodSync, readFileSync, rmSync } from 'node:fs';
import path from 'node:path';

import { pack } from './addon-sources.cjs';
import { forget, root } from './prepare.mjs';
import { unreachableTypes } from './release/reachable-types.mjs';
import { indentByTabs } from './release/tabs.mjs';

if (!process.env.VKV_RELEASE) {
  console.error('virtual-kv: `npm pack` alone makes a package without addons. Use `npm run release`; with `-- --platform linux-x64` it needs CMake only.');
  process.exit(1);
}
rmSync(path.join(root, 'dist'), { recursive: true, force: true });
forget('dist');
const tsc = path.join(root, 'node_modules', 'typescript', 'bin', 'tsc');
const compile = (...options) => {
  const { status } = spawnSync(process.execPath, [tsc, '-p', '.', '--noEmitOnError', ...options], { cwd: root, stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
};
compile('--sourceMap', 'false', '--declaration', 'false', '--declarationMap', 'false', '--removeComments');
compile('--emitDeclarationOnly', '--declarationMap', 'false');
if (spawnSync(process.execPath, ['scripts/build-page.mjs', '--sourceMap', 'false', '--removeComments'], { cwd: root, stdio: 'inherit' }).status !== 0) process.exit(1);
// The page's compilation has read declarations that no entry of the package leads to.
const { exports } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'));
const entries = Object.values(exports).map(({ types }) => types).filter((types) => types !== undefined);
for (const file of unreachableTypes(path.join(root, 'dist'), entries.map((entry) => path.relative(path.join(root, 'dist'), path.join(root, entry))))) rmSync(file);
indentByTabs(path.join(root, 'dist'));
chmodSync(path.join(root, 'dist', 'cli', 'vkv.js'), 0o755);
pack();
