#!/usr/bin/env bash
# Builds the addon with sanitizers and runs the suites that use it, every test process with the sanitizer's runtime:
#   scripts/sanitize.sh address    memory errors, undefined behaviour, leaks (ASan, UBSan, LSan)
#   scripts/sanitize.sh thread     data races (TSan)
# More arguments replace the list of test files. Needs GCC's or Clang's sanitizer libraries, which come with the compiler.
# Tests are those of `npm test`, unless VKV_TEST_TIER says otherwise. VKV_CI=full takes more folders.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-}
case $kind in
  address) flags=address,undefined ;;
  thread) flags=thread ;;
  *) echo "Usage: scripts/sanitize.sh address|thread [TEST FILE …]" >&2; exit 2 ;;
esac
shift
node --input-type=module -e 'import { prepareTests } from "./scripts/prepare.mjs"; prepareTests();'
suites=("$@")
if [ ${#suites[@]} -eq 0 ]; then
  if [ "$kind" = address ]; then
    suites=(cache contract store host native kernels)
    [ "${VKV_CI:-}" = full ] && suites+=(side tiers device mock cuda hostile)
  else # what has threads: streams and their waits, the mapper, copies to tiers, stores, kernels' workers
    suites=(contract/mock.test.js contract/host.test.js host/host-stream.test.js kernels/streams.test.js kernels/dense.test.js
      cache/mapper-faults.test.js cache/run-ahead.test.js native/shared-mapper.test.js native/random-slides.test.js cache/tiers/copies.test.js cache/tiers/random-tiers.test.js
      store/model.test.js store/round-trips.test.js tiers/reorder.test.js)
    [ "${VKV_CI:-}" = full ] && suites=(cache contract device host mock kernels store side tiers/reorder.test.js llama/awaited.test.js llama/truth.test.js importance)
  fi
  suites=("${suites[@]/#/build-test/}")
fi
out=$PWD/build-$kind
node_modules/.bin/cmake-js compile -p "$(nproc)" -O "$out" --CDVKV_SANITIZE="$flags" >"$out.log" 2>&1 || {
  cat "$out.log" >&2
  exit 1
}

# The compiler of the addon knows its runtime.
compiler=${CXX:-c++}
library=$("$compiler" -print-file-name="$([ "$kind" = address ] && echo libasan.so || echo libtsan.so)")
export VKV_ADDON=$out/Release/virtual_kv.node VKV_TEST_PRELOAD=$library VKV_TEST_SANITIZE=$flags
if [ "$kind" = address ]; then
  # Tests compile small programs of their own, and the compiler would be stopped for what it leaks.
  printf '#!/bin/sh\nunset LD_PRELOAD\nexec %s "$@"\n' "$compiler" >"$out/c++"
  chmod +x "$out/c++"
  export CXX=$out/c++
fi
export VKV_TEST_TIER=${VKV_TEST_TIER:-quick} VKV_TEST_TIMEOUT=${VKV_TEST_TIMEOUT:-10m}
# Some tests want their SIGSEGV; and one takes every file descriptor away, which the leak check at exit needs.
export ASAN_OPTIONS=detect_leaks=1:handle_segv=0:exitcode=99
export LSAN_OPTIONS=suppressions=$PWD/scripts/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=99
export TSAN_OPTIONS=handle_segv=0:exitcode=99:second_deadlock_stack=1:suppressions=$PWD/scripts/tsan.supp
skipped=(--match='!*file descriptor*')
# TSan's own tables take memory for every address in use, which leaves too little for reservations of many TiB.
# It reports races of the threads of Node's own workers.
[ "$kind" = thread ] && skipped+=(--match='!*takes no memory*' --match='!*12.6 TB*' --match='!*in eight threads*' --match='!*workers that are terminated*')
log=$out.run
node scripts/test.mjs "${skipped[@]}" "${suites[@]}" 2>&1 | tee "$log" && exit
# The leak checker stops the process's threads and reads their memory, and sometimes crashes itself; that is no failure here.
grep -q 'LeakSanitizer has encountered a fatal error' "$log" || exit 1
echo 'The leak checker itself failed; once more without it.'
ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 exec node scripts/test.mjs "${skipped[@]}" "${suites[@]}"
