// The package's version, and the folder of its files that are not JavaScript: the addon and the images of the CUDA
// kernels. In a bundle, where this code is part of the program's file, they lie beside that file (docs/install.md);
// package.json is bundled, since it is required by name.

import path = require('node:path');

export const packageVersion = (require('virtual-kv/package.json') as { readonly version: string }).version;

const isInPackage = __filename.endsWith(path.join('dist', 'base', 'package.js'));

/** The package's folder, or the bundle's. */
export const packageFolder = isInPackage ? path.resolve(__dirname, '..', '..') : __dirname;
