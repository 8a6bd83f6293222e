// The version of this package, from its package.json, which a bundler finds by this name and takes along.

export const packageVersion = (require('virtual-kv/package.json') as { readonly version: string }).version;
