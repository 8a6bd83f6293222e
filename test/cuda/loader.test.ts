// The loader, against libraries that export what drivers of different ages do (scripts/build-fake-libcuda.cjs).
// Alone in its process: it loads libraries by the environment.

import { spawnSync } from 'node:child_process';
import * as path from 'node:path';

import test from 'ava';

import { DenseKernels, Driver } from 'virtual-kv';

import { buildFakeLibcuda, fakeLibcuda } from '../helpers/fake-libcuda.js';
import { slow } from '../runner/slow.js';
import { nativeOf } from '../helpers/native-of.js';
import { hasCompiler } from '../helpers/native-probe.js';

const root = path.resolve(__dirname, '..', '..');
const loaderTest = hasCompiler ? test.serial : test.serial.skip; // serial: a fault is in the environment

test.before(() => {
  if (hasCompiler) buildFakeLibcuda();
});

test.afterEach.always(() => {
  delete process.env['FAKE_LIBCUDA'];
});

function open(version: number, fault?: string): Driver {
  if (fault !== undefined) process.env['FAKE_LIBCUDA'] = fault;
  return Driver.open('cuda', { libraryPath: fakeLibcuda(version) });
}

for (const [version, way] of [
  [13_000, 'cuGetProcAddress_v2'], [11_040, 'cuGetProcAddress'], [10_020, 'dlsym'],
] as const) {
  loaderTest(`a driver of CUDA ${version} is loaded through ${way}, and works`, (t) => {
    const driver = open(version);
    t.like(driver.info, {
      kind: 'cuda', deviceName: 'fake device', device: 0, driverVersion: version, computeCapability: 90,
      granularityBytes: 2 ** 21, defaultPageBytes: 2 ** 21, mappingLimit: 0, hasStreams: true, hasZeroedPages: false,
      hasReadableHoles: false,
      kernels: 'cuda',
    });
    const native = nativeOf(driver);
    const bytes = driver.info.granularityBytes;
    const address = native.reserve(2 * bytes, bytes);
    const page = native.createPage(bytes, 0n);
    native.map(address, bytes, page);
    native.setAccess(address, bytes);
    native.fill(address, 7, 64, 0n);
    native.write(address + 64n, Uint8Array.of(8, 9));
    const stream = native.createStream();
    native.copy(address + 66n, address + 62n, 4, stream);
    const event = native.recordEvent(stream);
    native.synchronizeStream(stream);
    t.true(native.queryEvent(event));
    const read = new Uint8Array(6);
    native.read(read, address + 64n);
    t.deepEqual([...read], [8, 9, 7, 7, 8, 9]);
    t.like(driver.memory(), { livePages: 1, liveReservations: 1, mappings: 1 });
    native.destroyEvent(event);
    native.destroyStream(stream);
    native.unmap(address, bytes);
    native.releasePage(page, bytes);
    native.freeReservation(address, 2 * bytes);
    t.like(driver.memory(), { livePages: 0, liveReservations: 0, mappings: 0 });
    driver.close();
  });
}

loaderTest('a library can be opened again, and by two drivers at once', (t) => {
  const first = open(13_000);
  const second = open(13_000);
  first.close();
  t.is(second.memory().livePages, 0);
  second.close();
  t.notThrows(() => open(13_000).close());
});

loaderTest('a driver from before virtual memory management is too old', (t) => {
  const error = t.throws(() => open(10_010), { code: 'KV_DRIVER_TOO_OLD' });
  t.like(error, { details: { missing: 'cuMemGetAllocationGranularity', driverVersion: 10_010 } });
});

for (const version of [13_000, 11_040]) {
  loaderTest(`CUDA ${version}: an entry point without an address counts as missing`, (t) => {
    const error = t.throws(() => open(version, 'without:cuMemMap'), { code: 'KV_DRIVER_TOO_OLD' });
    t.like(error, { details: { missing: 'cuMemMap', driverVersion: version } });
  });

  loaderTest(`CUDA ${version}: entry points of optional features may be missing`, (t) => {
    for (const name of ['cuLaunchKernel', 'cuMemGetAccess', 'cuGetErrorName', 'cuThreadExchangeStreamCaptureMode']) {
      const driver = open(version, `without:${name}`);
      t.is(driver.memory().livePages, 0, name);
      driver.close();
    }
  });
}

for (const [fault, reason, statusName] of [
  ['stub', 'stub-library', 'CUDA_ERROR_STUB_LIBRARY'],
  ['no-device', 'no-device', 'CUDA_ERROR_NO_DEVICE'],
  ['not-ready', 'init-failed', 'CUDA_ERROR_SYSTEM_NOT_READY'],
] as const) {
  loaderTest(`a driver that does not start is unavailable: ${reason}`, (t) => {
    const error = t.throws(() => open(13_000, fault), { code: 'KV_DRIVER_UNAVAILABLE' });
    t.like(error, { details: { driver: 'cuda', reason, call: 'cuInit', statusName } });
  });
}

loaderTest('a device that does not know virtual memory management does not support it', (t) => {
  const error = t.throws(() => open(13_000, 'no-attribute'), { code: 'KV_DRIVER_UNSUPPORTED' });
  t.like(error, { details: { device: 0 } });
});

loaderTest('an ordinal out of range is no such device', (t) => {
  const error = t.throws(() => Driver.open('cuda', { device: 3, libraryPath: fakeLibcuda(13_000) }));
  t.like(error, { code: 'KV_DRIVER_UNAVAILABLE', details: { driver: 'cuda', reason: 'no-such-device', device: 3 } });
});

loaderTest('a library that is not there is unavailable', (t) => {
  const error = t.throws(() => Driver.open('cuda', { libraryPath: path.join(root, 'no-such-library.so') }));
  t.like(error, { code: 'KV_DRIVER_UNAVAILABLE', details: { driver: 'cuda', reason: 'no-library', call: 'dlopen' } });
});

loaderTest('a library without CUDA\'s entry points is too old', (t) => {
  const addon = process.env['VKV_ADDON'] ?? path.join(root, 'build', 'Release', 'virtual_kv.node');
  const error = t.throws(() => Driver.open('cuda', { libraryPath: addon }));
  t.like(error, { code: 'KV_DRIVER_TOO_OLD', details: { missing: 'cuInit', driverVersion: 0 } });
});

loaderTest('on a device of CUDA cuBLAS is looked for, where VKV_CUBLAS says', (t) => {
  const driver = open(13_000);
  const targetOf = (where: string | undefined, cublas?: string): string => {
    if (where !== undefined) process.env['VKV_CUBLAS'] = where;
    using dense = new DenseKernels({ driver, cublas });
    delete process.env['VKV_CUBLAS'];
    return dense.target;
  };
  const library = path.join(root, 'build-test', 'fake-libcuda', 'libcublas.so');
  t.is(targetOf(library), 'cublas 12.8');
  t.is(targetOf('off'), 'sm_90');
  t.is(targetOf(library, 'off'), 'sm_90', 'the option goes first');
  driver.close();
});

(hasCompiler ? slow('starts an example') : test.skip)('the llama example computes on the GPU where there is one, and tells the same there', (t) => {
  const tell = (driver: string): string => {
    const program = path.join(root, 'build-examples', 'llama.js');
    const flags = ['--driver', driver, '--prompt', 'Tell me a story.', '--max-new-tokens', '8'];
    const { status, stdout, stderr } = spawnSync(process.execPath, [program, ...flags], {
      encoding: 'utf8', env: { ...process.env, LD_LIBRARY_PATH: path.dirname(fakeLibcuda(13_000)), VKV_CUBLAS: 'off' },
    });
    t.is(status, 0, stderr);
    return stdout;
  };
  const [best, host] = [tell('auto'), tell('host')];
  t.regex(best, /^on fake device, sm_90\n/);
  const storyOf = (output: string): string | undefined => /^> .*\n(.*)\n/m.exec(output)?.[1];
  t.truthy(storyOf(host));
  t.is(storyOf(best), storyOf(host));
});
