'use strict';
// Compiles the CUDA kernels with nvcc:
//   node scripts/build-kernels.cjs          build/Release/kernels.fatbin, for the GPUs of this machine, or those named below where it has
//                                           none, and PTX for later ones; it is `vkv build-kernels`, too
//   node scripts/build-kernels.cjs --ptx    kernels/cuda/*.ptx.br, the PTX that comes with the package, and in a checkout
//                                           scripts/gpu/block-table.ptx.br, which gpu-check compares with it
// PTX needs no toolkit where it is used: the driver compiles it. There is one for GPUs since Turing, and one for GPUs since
// Ampere, which have tensor cores for bfloat16, and a small one for side tensors; all are for drivers since CUDA 11.0. The last line is a hash of the sources,
// and a test fails when the sources have changed since. NVCC names another nvcc. Exit code 0: the images were written.
const { spawn, spawnSync } = require('node:child_process');
const { createHash } = require('node:crypto');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const zlib = require('node:zlib');

const { unpack } = require('./addon-sources.cjs');

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

/** Compute capabilities to compile for, 90 for 9.0: of the GPUs here, or of all that are named above. */
function architectures() {
  const { stdout } = spawnSync('nvidia-smi', ['--query-gpu=compute_cap', '--format=csv,noheader'], { encoding: 'utf8' });
  const here = [...(stdout ?? '').matchAll(/^(\d+)\.(\d)\r?$/gm)].map(([, major, minor]) => Number(major + minor));
  return here.length > 0 ? [...new Set(here)].sort((left, right) => left - right) : ARCHITECTURES;
}

async function buildFatbin() {
  const version = /release ([\d.]+)/.exec(spawnSync(nvcc, ['--version'], { encoding: 'utf8' }).stdout ?? '')?.[1];
  if (version === undefined) {
    console.error(`virtual-kv: there is no nvcc (${nvcc}). Install the CUDA toolkit, or let NVCC name it. The kernels work without: the GPU's driver ` +
      'compiles the PTX of this package when they are loaded first.');
    process.exit(1);
  }
  const output = path.join(root, 'build', 'Release', 'kernels.fatbin');
  const sources = fs.mkdtempSync(path.join(os.tmpdir(), 'virtual-kv-'));
  try {
    fs.mkdirSync(path.dirname(output), { recursive: true });
    const numbers = architectures();
    const codes = numbers.map((number) => `-gencode=arch=compute_${number},code=sm_${number}`);
    const ptx = `-gencode=arch=compute_${numbers.at(-1)},code=compute_${numbers.at(-1)}`;
    const made = path.join(sources, 'kernels.fatbin');
    // Drivers older than this nvcc refuse its compressed code.
    const args = [...flags, '-fatbin', '--no-compress', '--threads=0', ...codes, ptx, '-o', made, 'kernels/cuda/kernels.cu'];
    await compileAloud(`compiling the CUDA kernels for ${numbers.map((number) => `sm_${number}`).join(', ')} with nvcc ${version}`, args, unpack(sources));
    fs.copyFileSync(made, output);
    console.error(`virtual-kv: ${output}, ${(fs.statSync(output).size / 2 ** 20).toFixed(1)} MiB`);
  } finally {
    fs.rmSync(sources, { recursive: true });
  }
}

/** Takes a minute or more: it says that it goes on. */
async function compileAloud(title, args, cwd) {
  const startMs = performance.now();
  const seconds = () => `${((performance.now() - startMs) / 1e3).toFixed(0)} s`;
  const { isTTY } = process.stderr;
  process.stderr.write(`virtual-kv: ${title} … `);
  const timer = setInterval(() => process.stderr.write(isTTY ? `\r\u001B[Kvirtual-kv: ${title} … ${seconds()}` : '.'), isTTY ? 1_000 : 10_000);
  let output = '';
  const child = spawn(nvcc, args, { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => { output += text; });
  const status = await new Promise((resolve) => child.on('error', (error) => { output += error.message; resolve(1); }).on('close', resolve));
  clearInterval(timer);
  process.stderr.write(`${isTTY ? `\r\u001B[Kvirtual-kv: ${title} … ` : ' '}${status === 0 ? seconds() : 'failed'}\n`);
  if (status !== 0) throw new Error(`${nvcc} ${args.join(' ')}\n${output}`);
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
  if (!process.argv.includes('--ptx')) {
    buildFatbin().catch((error) => {
      console.error(`virtual-kv: ${error.message}`);
      process.exitCode = 1;
    });
  } else for (const image of Object.keys(images())) if (fs.existsSync(path.join(root, images()[image].source))) buildPtx(image);
}
module.exports = { sourceHash };
