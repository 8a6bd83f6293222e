'use strict';
// tsc does not keep the executable bit that the vkv command needs when it is run straight from a clone.
const fs = require('node:fs');
const path = require('node:path');
fs.chmodSync(path.resolve(__dirname, '..', 'dist', 'cli', 'vkv.js'), 0o755);
