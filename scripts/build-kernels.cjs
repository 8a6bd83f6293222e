'use strict';
// Compiles the CUDA kernels with nvcc:
//   node scripts/build-kernels.cjs          build/Release/kernels.fatbin, for the GPUs named below and PTX for later ones
//   node scripts/build-kernels.cjs --ptx    kernels/cuda/*.ptx.br, the PTX that comes with the package, and in a checkout
//                                           scripts/gpu/block-table.ptx.br, which gpu-check compares with it
// PTX needs no toolkit where it is used: the driver compiles it. There is one for GPUs since Turing, and one for GPUs since
// Ampere, which have tensor cores for bfloat16, and a small one for side tensors; all are for drivers since CUDA 11.0. The last line is a hash of the sources,
// and a test fails when the sources have changed since. NVCC names another nvcc. Exit code 0: the images were written.
const { spawnSync } = require('node:child_process');
const { createHash } = require('node:crypto');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const zlib = require('node:zlib');

const root = path.resolve(__dirname, '..');
const nvcc = process.env.NVCC || 'nvcc';
const flags = ['-std=c++17', '-O3', '-I.'];
const ARCHITECTURES = [80, 86, 89, 90];
const PTX_VERSION = '7.0';

/** The PTX images: their sources, and the first GPU architecture of each. */
function images() {
  const named = (folder, end) =>
    fs.readdirSync(path.join(root, folder)).filter((name) => name.endsWith(end)).sort().map((name) => `${folder}/${name}`);
  const shared = [...named('kernels/cuda', '_inl.h'), 'kernels/cuda/device.h', 'kernels/cuda/parameters.h', 'kernels/commands.h'];
  const dense = [...named('kernels/dense/cuda', '.cu'), 'kernels/dense/cuda/dense_parameters.h', 'kernels/dense/dense_commands.h'];
  const scatter = 'kernels/cuda/scatter.cu'; // a module by itself
  const all = { source: 'kernels/cuda/kernels.cu', sources: [...named('kernels/cuda', '.cu').filter((name) => name !== scatter), ...shared, ...dense] };
  const blockTable = ['scripts/gpu/block_table.cu', 'scripts/gpu/block_table.h'];
  return {
    'kernels/cuda/kernels': { ...all, architecture: 75 },
    'kernels/cuda/kernels-sm80': { ...all, architecture: 80 },
    'kernels/cuda/scatter': { source: scatter, sources: [scatter, ...shared], architecture: 75 },
    'scripts/gpu/block-table': { source: blockTable[0], sources: [...blockTable, ...shared], architecture: 80 },
  };
}

function sourceHash(image = 'kernels/cuda/kernels') {
  const hash = createHash('sha256');
  for (const file of images()[image].sources) hash.update(fs.readFileSync(path.join(root, file)));
  return hash.digest('hex').slice(0, 16);
}

function compile(source, args) {
  const { status, stdout, stderr, error } = spawnSync(nvcc, [...flags, ...args, source], { cwd: root, encoding: 'utf8' });
  if (status === 0) return;
  console.error(`${nvcc} ${args.join(' ')}\n${stdout ?? ''}${stderr ?? ''}${error ? error.message : ''}`);
  process.exit(status || 1);
}

function buildFatbin() {
  const output = path.join(root, 'build', 'Release', 'kernels.fatbin');
  fs.mkdirSync(path.dirname(output), { recursive: true });
  const codes = ARCHITECTURES.map((number) => `-gencode=arch=compute_${number},code=sm_${number}`);
  const last = ARCHITECTURES.at(-1);
  const ptx = `-gencode=arch=compute_${last},code=compute_${last}`;
  // Drivers older than this nvcc refuse its compressed code.
  compile('kernels/cuda/kernels.cu', ['-fatbin', '--no-compress', '--threads=0', ...codes, ptx, '-o', output]);
}

/** Strips comments, indentation, and a hint that only newer versions of PTX have. */
function shortened(ptx) {
  return ptx.replace(/\/\/.*$/gm, '').replace(/^\s*\.pragma "used_bytes_mask[^\n]*$/gm, '').replace(/^[ \t]+|[ \t]+$/gm, '')
    .replace(/\n+/g, '\n').trim().replace(/^\.version .*$/m, `.version ${PTX_VERSION}`);
}

function buildPtx(image) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'virtual-kv-'));
  const output = path.join(folder, 'kernels.ptx');
  const { source, architecture } = images()[image];
  compile(source, ['-ptx', `-arch=compute_${architecture}`, '-o', output]);
  const text = Buffer.from(`${shortened(fs.readFileSync(output, 'utf8'))}\n// sources ${sourceHash(image)}\n`);
  fs.rmSync(folder, { recursive: true });
  const { constants } = zlib;
  const compressed = zlib.brotliCompressSync(text, { params: {
    [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_LGWIN]: 24, [constants.BROTLI_PARAM_SIZE_HINT]: text.length,
  } });
  fs.writeFileSync(path.join(root, `${image}.ptx.br`), compressed);
}

if (require.main === module) {
  if (!process.argv.includes('--ptx')) buildFatbin();
  else for (const image of Object.keys(images())) if (fs.existsSync(path.join(root, images()[image].source))) buildPtx(image);
}
module.exports = { sourceHash };
