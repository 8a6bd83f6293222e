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
  suites=(contract device host mock kernels store cache)
  [ "$kind" = address ] && suites+=(cuda side tiers)
  # The longest; `npm test` has it without a sanitizer.
  [ "$kind" = address ] && [ "${VKV_CI:-}" = full ] && suites+=(hostile)
  suites=("${suites[@]/#/build-test/}")
  export VKV_TEST_REPEAT=1 # not what is compiled and run by itself
fi
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
export VKV_ADDON=$out/Release/virtual_kv.node VKV_TEST_PRELOAD=$library
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
if [ $# -eq 0 ] && [ "$kind" = address ]; then
  # A process that ends early leaks Node's own memory, so only memory errors count here. TSan is left out: it
  # reports races of the threads of Node's own workers.
  ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 node scripts/test.mjs build-test/teardown
fi
skipped=(--match='!*file descriptor*')
# TSan's own tables take memory for every address in use, which leaves too little for reservations of many TiB.
# It reports races of the threads of Node's own workers.
[ "$kind" = thread ] && skipped+=(--match='!*takes no memory*' --match='!*12.6 TB*' --match='!*in eight threads*' --match='!*workers that are terminated*')
if [ "$kind" = thread ]; then
  exec node scripts/test.mjs "${skipped[@]}" "${suites[@]}"
fi
for suite in "${suites[@]}"; do
  if node scripts/test.mjs "${skipped[@]}" "$suite" >"$out.run" 2>&1; then
    cat "$out.run"
    continue
  fi
  # The leak checker stops the process's threads and reads their memory, and sometimes crashes itself; that is no failure here.
  if ! grep -q 'LeakSanitizer has encountered a fatal error' "$out.run"; then
    cat "$out.run"
    exit 1
  fi
  echo "The leak checker itself failed in $suite; once more without it."
  ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 node scripts/test.mjs "${skipped[@]}" "$suite"
done
