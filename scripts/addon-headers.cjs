'use strict';
// The headers of node-addon-api, with which the addon is built from source. A clone has the npm package; an installed package, where they
// are needed only if no prebuilt addon fits, has them packed in native/node-addon-api.json.br and unpacks them into build/.
//   node scripts/addon-headers.cjs   prints their folder
const fs = require('node:fs');
const path = require('node:path');
const zlib = require('node:zlib');

const root = path.resolve(__dirname, '..');
const packed = path.join(root, 'native', 'node-addon-api.json.br');
/** Of the npm package. */
const names = ['napi.h', 'napi-inl.h', 'napi-inl.deprecated.h', 'LICENSE.md'];

function ownFolder() {
  return path.dirname(require.resolve('node-addon-api/package.json'));
}

/** Writes what an installed package has instead of the npm package. */
function pack() {
  const texts = Object.fromEntries(names.map((name) => [name, fs.readFileSync(path.join(ownFolder(), name), 'utf8')]));
  fs.writeFileSync(packed, zlib.brotliCompressSync(JSON.stringify(texts)));
}

/** The folder that has the headers. */
function folder() {
  const isClone = fs.existsSync(path.join(root, 'lib'));
  if (isClone || !fs.existsSync(packed)) return ownFolder();
  const unpacked = path.join(root, 'build', 'node-addon-api');
  fs.mkdirSync(unpacked, { recursive: true });
  const texts = JSON.parse(zlib.brotliDecompressSync(fs.readFileSync(packed)).toString('utf8'));
  for (const name of names) fs.writeFileSync(path.join(unpacked, name), texts[name]);
  return unpacked;
}

module.exports = { pack };
if (require.main === module) console.log(folder());
