'use strict';
// Builds the fake CUDA driver libraries that the loader's tests open: test/native/fake_libcuda.cc over the simulated
// device, once for each CUDA version below. Writes build-test/fake-libcuda/<version>/libcuda.so.1, and beside those folders
// libcublas.so, a fake cuBLAS, libcublas-without-gemm.so, which lacks an entry point, and libonnxruntime.so, a fake onnxruntime.
// `--cublas`: only the two of cuBLAS. The others are left as they are while no source has changed. CXX names the C++ compiler.
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const { nativeHash, objectsOf } = require('./native-hash.cjs');

const root = path.resolve(__dirname, '..');
const output = path.join(root, 'build-test', 'fake-libcuda');
const compiler = process.env.CXX || 'c++';
const flags = [
  '-std=c++20', '-O1', '-fPIC', '-fvisibility=hidden', '-fno-exceptions', '-fno-rtti', '-Wall', '-Wextra', '-Inative', '-I.',
];

// A CUDA version, and the symbols that it lacks.
const since12 = ['cuGetProcAddress_v2'];
const since11 = [...since12, 'cuGetProcAddress', 'cuMemRetainAllocationHandle', 'cuDevicePrimaryCtxRelease_v2'];
const since10point2 = [
  ...since11, 'cuMemGetAllocationGranularity', 'cuMemAddressReserve', 'cuMemAddressFree', 'cuMemCreate', 'cuMemRelease',
  'cuMemMap', 'cuMemUnmap', 'cuMemSetAccess', 'cuMemGetAccess',
];
const ages = [
  { version: 13000, hidden: [] },
  { version: 11040, hidden: since12 },
  { version: 10020, hidden: since11 },
  { version: 10010, hidden: since10point2 },
];

// Sources that the simulated device needs.
const needed = [
  'native/cuda/results.cc', 'kernels/reference.cc', 'kernels/dense/dense_reference.cc', 'kernels/cuda/launches.cc', 'kernels/cuda/simulated.cc',
  'kernels/dense/cuda/dense_launches.cc', 'kernels/dense/cuda/simulated_dense.cc',
];

function run(args) {
  const { status, stderr, error } = spawnSync(compiler, args, { cwd: root, encoding: 'utf8' });
  if (status === 0) return;
  console.error(`${compiler} ${args.join(' ')}\n${stderr ?? ''}${error ? error.message : ''}`);
  process.exit(status || 1);
}

// Several test processes may do this at once: a library is renamed into place when it is complete.
function buildLibrary(name, source, ...more) {
  const library = path.join(output, name);
  const unnamed = `${library}.${process.pid}`;
  run([...flags, ...more, '-shared', source, '-o', unnamed]);
  fs.renameSync(unnamed, library);
}

function buildCublas() {
  buildLibrary('libcublas.so', 'test/native/fake_libcublas.cc');
  buildLibrary('libcublas-without-gemm.so', 'test/native/fake_libcublas.cc', '-DFAKE_WITHOUT_GEMM');
}

/** Each is renamed into place too, and after them the file that says what they were made from. */
function buildLibcuda() {
  const stamp = path.join(output, 'sources');
  const hash = nativeHash(compiler, fs.readFileSync(path.join(__dirname, 'build-fake-libcuda.cjs'), 'utf8'));
  if (fs.existsSync(stamp) && fs.readFileSync(stamp, 'utf8') === hash) return;
  const made = fs.mkdtempSync(path.join(output, 'making-'));
  const sources = fs.readFileSync(path.join(root, 'native', 'sources.txt'), 'utf8').split(/\r?\n/)
    .filter((source) => source.startsWith('native/mock/') || needed.includes(source));
  const objects = [...objectsOf(sources), 'test/native/simulated_block_table.cc'].map((source) => {
    if (source.endsWith('.o')) return source;
    const object = path.join(made, `${path.basename(source, '.cc')}.o`);
    run([...flags, '-c', source, '-o', object]);
    return object;
  });
  for (const { version, hidden } of ages) {
    const folder = path.join(output, String(version));
    fs.mkdirSync(folder, { recursive: true });
    const exported = path.join(made, 'exported.map');
    const library = path.join(made, 'libcuda.so.1');
    fs.writeFileSync(exported, `{ global: cu*; local: ${[...hidden, '*'].join('; ')}; };\n`);
    run([
      ...flags, `-DFAKE_CUDA_VERSION=${version}`, '-shared', 'test/native/fake_libcuda.cc', ...objects,
      `-Wl,--version-script=${exported}`, '-o', library,
    ]);
    fs.renameSync(library, path.join(folder, 'libcuda.so.1'));
  }
  buildLibrary('libonnxruntime.so', 'test/native/fake_onnxruntime.cc');
  fs.writeFileSync(path.join(made, 'sources'), hash);
  fs.renameSync(path.join(made, 'sources'), stamp);
  fs.rmSync(made, { recursive: true });
}

fs.mkdirSync(output, { recursive: true });
buildCublas();
if (!process.argv.includes('--cublas')) buildLibcuda();
