// Which test files AVA runs, and how. `npm test` leaves the package tests out, because they install from the registry:
// VKV_TEST_PACKAGE=1 (`npm run test:package`) runs those and nothing else.
// VKV_TEST_SWEEPS=0 leaves out the tests that fail each call of the driver, or spoil each argument, in turn: the longest, and about the same wherever they run.
// VKV_TEST_REPEAT=1 leaves out what is the same whatever runs it, once another run has had it: neither Node.js nor the addon is what it tests.
// VKV_TEST_LONG=0 leaves out what takes minutes under a sanitizer.
// VKV_TEST_PRELOAD is a library that only the test processes load first: a sanitizer's runtime (scripts/sanitize.sh).
const { VKV_TEST_LONG, VKV_TEST_PACKAGE, VKV_TEST_PRELOAD, VKV_TEST_REPEAT, VKV_TEST_SWEEPS, VKV_TEST_TIMEOUT } = process.env;
const once = ['cli/printed-commands', 'declarations', 'docs', 'kernels/assembled', 'kernels/sources', 'models/mapper', 'scripts/**/*'];
const sweeps = ['cache/faults', 'cache/lost-device', 'cache/prefix/prefix-faults', 'hostile/hostile', 'side/side-faults'];
const long = ['host/limits', 'store/power'];

const leftOut = [...(VKV_TEST_LONG === '0' ? long : []), ...(VKV_TEST_SWEEPS === '0' ? sweeps : []), ...(VKV_TEST_REPEAT === '1' ? once : [])];

export default {
  files: VKV_TEST_PACKAGE
    ? ['build-test/package/**/*.test.js']
    : ['build-test/**/*.test.js', '!build-test/package/**', ...leftOut.map((name) => `!build-test/${name}.test.js`)],
  workerThreads: false,
  ...(VKV_TEST_PACKAGE ? { concurrency: 1 } : {}), // each file makes a release in this clone
  timeout: VKV_TEST_TIMEOUT ?? (VKV_TEST_PACKAGE ? '15m' : '120s'),
  environmentVariables: VKV_TEST_PRELOAD ? { LD_PRELOAD: VKV_TEST_PRELOAD } : {},
};
