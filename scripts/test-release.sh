#!/usr/bin/env bash
# `npm run test:release`, for hours, before a release: everything that CI has and what it leaves out, then all tests with whole tables
# and fresh seeds, and the long random worlds of stores and side tensors at a hundred times their length.
set -euo pipefail
cd "$(dirname "$0")/.."
VKV_CI=full VKV_CI_LIMIT=36000 bash .ci/run
VKV_TEST_TIER=release VKV_TEST_SEED=fresh VKV_TEST_TIMEOUT=3h node scripts/test.mjs
VKV_TEST_SCALE=100 VKV_TEST_TIMEOUT=90m node scripts/test.mjs build-test/store build-test/side/random-side.test.js
