'use strict';
// What the addon and the CUDA kernels are built from: native/, kernels/ and the headers of node-addon-api. A clone has them as files and as
// an npm package; an installed package, which needs them only where no prebuilt addon fits and for `vkv build-kernels`, has them packed in
// native/addon-sources.json.br, a fifth of their size.
//   node scripts/addon-sources.cjs   prints the folder of the headers
const fs = require('node:fs');
const path = require('node:path');
const zlib = require('node:zlib');

const root = path.resolve(__dirname, '..');
const packed = path.join(root, 'native', 'addon-sources.json.br');
const headers = path.join('build', 'node-addon-api');
/** Of the npm package. */
const headerNames = ['napi.h', 'napi-inl.h', 'napi-inl.deprecated.h', 'LICENSE.md'];

function headersOfPackage() {
  return path.dirname(require.resolve('node-addon-api/package.json'));
}

/** Source files below a folder, by their paths from the root. */
function sourcesIn(folder) {
  return fs.readdirSync(path.join(root, folder), { recursive: true })
    .filter((name) => /\.(cc|h|cu|txt)$/.test(name)).sort().map((name) => path.join(folder, name));
}

/** Writes what an installed package has instead of the files. */
function pack() {
  const texts = {};
  for (const file of [...sourcesIn('native'), ...sourcesIn('kernels')]) texts[file] = fs.readFileSync(path.join(root, file), 'utf8');
  for (const name of headerNames) texts[path.join(headers, name)] = fs.readFileSync(path.join(headersOfPackage(), name), 'utf8');
  fs.writeFileSync(packed, zlib.brotliCompressSync(JSON.stringify(texts)));
}

const isPacked = () => !fs.existsSync(path.join(root, 'lib')) && fs.existsSync(packed);

/** In an installed package: writes all of them as files below `to`, and returns it. Elsewhere they are there: returns the clone. */
function unpack(to = root) {
  if (!isPacked()) return root;
  for (const [file, text] of Object.entries(JSON.parse(zlib.brotliDecompressSync(fs.readFileSync(packed)).toString('utf8')))) {
    fs.mkdirSync(path.dirname(path.join(to, file)), { recursive: true });
    fs.writeFileSync(path.join(to, file), text);
  }
  return to;
}

module.exports = { pack, unpack };
if (require.main === module) {
  if (isPacked() && !fs.existsSync(path.join(root, headers))) unpack(); // build/ may have been removed since
  console.log(isPacked() ? path.join(root, headers) : headersOfPackage());
}
