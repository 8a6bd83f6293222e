'use strict';
// For scripts/test-arm64.mjs: has a process start others with the Node.js that VKV_EMULATED_NODE names.
process.execPath = process.env.VKV_EMULATED_NODE;
