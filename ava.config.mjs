// How AVA runs tests. scripts/test.mjs names the files, most of them in bundles (scripts/tests/selection.mjs); without
// it AVA runs every file by itself. VKV_TEST_PACKAGE=1 (`npm run test:package`) runs the tests of the packed package
// and nothing else, which install from the registry. VKV_TEST_PRELOAD is a library that only the test processes load
// first: a sanitizer's runtime (scripts/sanitize.sh).
const { VKV_TEST_FILES = '[]', VKV_TEST_PACKAGE, VKV_TEST_PRELOAD, VKV_TEST_TIMEOUT } = process.env;
const chosen = JSON.parse(VKV_TEST_FILES);
const all = ['build-test/**/*.test.js', '!build-test/package/**', '!build-test/bundles/**'];

export default {
  files: VKV_TEST_PACKAGE ? ['build-test/package/**/*.test.js'] : chosen.length > 0 ? chosen : all,
  // In the order of `files`: those that are alone in their processes first.
  sortTestFiles: (a, b) => placeOf(a) - placeOf(b),
  workerThreads: false,
  require: ['./build-test/runner/measure.js'],
  ...(VKV_TEST_PACKAGE ? { concurrency: 1 } : {}), // each file makes a release in this clone
  // How long AVA waits while no test ends. No test calls `t.timeout`: AVA's timer rings once, and AVA ignores it while
  // such a call asks for more time.
  timeout: VKV_TEST_TIMEOUT ?? (VKV_TEST_PACKAGE ? '15m' : '10m'),
  environmentVariables: VKV_TEST_PRELOAD ? { LD_PRELOAD: VKV_TEST_PRELOAD } : {},
};

function placeOf(file) {
  return chosen.findIndex((one) => file.endsWith(`/${one}`));
}
