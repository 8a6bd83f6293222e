#!/usr/bin/env bash
# Builds the addon with sanitizers and runs the suites that use it, every test process with the sanitizer's runtime:
#   scripts/sanitize.sh address    memory errors, undefined behaviour, leaks (ASan, UBSan, LSan)
#   scripts/sanitize.sh thread     data races (TSan)
# More arguments replace the list of test files. Needs GCC's or Clang's sanitizer libraries, which come with the compiler.
# VKV_TEST_SCALE shortens the long random tests: 0.1 here unless it is given.
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
  suites=(cache contract device host mock kernels store tiers/reorder.test.js llama/awaited.test.js llama/truth.test.js
    importance/placement.test.js importance/read-ahead.test.js importance/reordering.test.js importance/reordered-reads.test.js importance/meddling.test.js
    side/random-side.test.js side/side-copies.test.js side/device-rows.test.js side/side-lifecycle.test.js serving/side-identity.test.js)
  # The longest first.
  [ "$kind" = address ] && suites=('cache/*.test.js' teardown cache/tiers cache/prefix host store side tiers contract device mock kernels cuda)
  # `npm test` has without a sanitizer what is left out.
  if [ "${VKV_CI:-}" = full ]; then
    [ "$kind" = address ] && suites+=(hostile)
  else
    export VKV_TEST_LONG=0 VKV_TEST_SWEEPS=0
  fi
  suites=("${suites[@]/#/build-test/}")
fi
export VKV_TEST_REPEAT=1 # not what is compiled and run by itself, without the sanitizer's flags
# A failing call is handled on the thread that made it, so these have no races to show.
[ "$kind" = thread ] && export VKV_TEST_SWEEPS=0
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
export VKV_TEST_SCALE=${VKV_TEST_SCALE:-0.1} VKV_TEST_TIMEOUT=${VKV_TEST_TIMEOUT:-10m}
# Some tests want their SIGSEGV; and one takes every file descriptor away, which the leak check at exit needs.
export ASAN_OPTIONS=detect_leaks=1:handle_segv=0:exitcode=99
export LSAN_OPTIONS=suppressions=$PWD/scripts/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:exitcode=99
export TSAN_OPTIONS=handle_segv=0:exitcode=99:second_deadlock_stack=1:suppressions=$PWD/scripts/tsan.supp
skipped=(--match='!*file descriptor*')
# TSan's own tables take memory for every address in use, which leaves too little for reservations of many TiB.
# It reports races of the threads of Node's own workers.
[ "$kind" = thread ] && skipped+=(--match='!*takes no memory*' --match='!*12.6 TB*' --match='!*in eight threads*' --match='!*workers that are terminated*')
if [ "$kind" = thread ]; then
  exec node scripts/test.mjs "${skipped[@]}" "${suites[@]}"
fi

# run_suite SUITE: shows its output when it is over.
run_suite() {
  local log=$out.${1//\//-}.run
  # A process that ends early leaks Node's own memory, so only memory errors count there. TSan has no such suite: it reports races
  # of the threads of Node's own workers.
  [ "$1" = build-test/teardown ] && ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0
  if node scripts/test.mjs --concurrency=1 "${skipped[@]}" "$1" >"$log" 2>&1; then
    cat "$log"
    return
  fi
  # The leak checker stops the process's threads and reads their memory, and sometimes crashes itself; that is no failure here.
  if ! grep -q 'LeakSanitizer has encountered a fatal error' "$log"; then
    cat "$log"
    return 1
  fi
  echo "The leak checker itself failed in $1; once more without it."
  ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 node scripts/test.mjs --concurrency=1 "${skipped[@]}" "$1"
}

# As many suites at once as there are processors: the last files of one run beside the first of the next.
rm -f "$out.failed"
for suite in "${suites[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
  { run_suite "$suite" || touch "$out.failed"; } &
done
wait
[ ! -e "$out.failed" ]
