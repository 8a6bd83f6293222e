'use strict';
// What the small native programs and libraries of the tests are made from, as a hash: they are compiled once for all runs of the tests that find
// the same sources and the same compiler, whatever it is called. And the objects that they share with the addon.
const { spawnSync } = require('node:child_process');
const { createHash } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');

const root = path.resolve(__dirname, '..');

/** Hexadecimal digits for the native sources, the compiler's version, and whatever else decides what is made. */
function nativeHash(compiler, more) {
  const hash = createHash('sha256').update(spawnSync(compiler, ['--version'], { encoding: 'utf8' }).stdout ?? '').update(JSON.stringify(more));
  for (const folder of ['native', 'kernels', 'test/native']) {
    const names = fs.readdirSync(path.join(root, folder), { recursive: true }).filter((name) => /\.(cc|cu|cuh|h|txt)$/.test(name)).sort();
    for (const name of names) hash.update(name).update(fs.readFileSync(path.join(root, folder, name)));
  }
  return hash.digest('hex');
}

/**
 * What to give the linker for native sources: the objects that the addon was made of, in the build folder of VKV_ADDON where that is set,
 * or the sources themselves where those are not there (another build tool, a prebuilt addon).
 */
function objectsOf(sources) {
  const build = process.env.VKV_ADDON ? path.resolve(process.env.VKV_ADDON, '..', '..') : path.join(root, 'build');
  const objects = sources.map((source) => path.join(build, 'CMakeFiles', 'virtual_kv.dir', `${source}.o`));
  return objects.every((object) => fs.existsSync(object)) ? objects : sources;
}

module.exports = { nativeHash, objectsOf };
