// Where the package's other files are: the addon, and the images of the CUDA kernels. A bundler moves this file into the program's,
// and the files are then expected beside that (docs/install.md). Reads nothing.

import path = require('node:path');

const isInPackage = __filename.endsWith(path.join('dist', 'base', 'package-folder.js'));

/** The package's folder, or the bundle's. */
export const packageFolder = isInPackage ? path.resolve(__dirname, '..', '..') : __dirname;
