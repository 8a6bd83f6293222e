// Finds and loads the addon: the file that VKV_ADDON names; else what was built here from source; else the prebuilt one
// for this platform. A prebuilt file must have the checksum of its release: one that was cut short would not fail to
// load but end the process. Knows nothing of what the addon does.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path = require('node:path');

import bindings = require('bindings');

import { createError, type ErrorDetails } from '../base/errors.js';
import { packageFolder } from '../base/package.js';

type Tried = ErrorDetails['KV_ADDON_NOT_FOUND']['tried'][number];

const platform = `${process.platform}-${process.arch}`;
const requireFile = createRequire(__filename);

/**
 * The addon's exports, and the file they are from. Throws KV_ADDON_NOT_FOUND with every place that was tried, best
 * first.
 */
export function loadAddon(): { readonly exports: unknown; readonly file: string } {
  const override = process.env['VKV_ADDON'];
  const built = path.join(packageFolder, 'build', 'Release', 'virtual_kv.node');
  const prebuilt = path.join(packageFolder, 'prebuilds', platform, 'virtual_kv.node');
  const places: readonly (readonly [file: string, load: (file: string) => unknown])[] = override !== undefined
    ? [[override, requireFile]]
    : [[built, loadBuilt], [prebuilt, loadPrebuilt]];
  const tried: Tried[] = [];
  let cause: unknown;
  for (const [file, load] of places) {
    try {
      return { exports: load(file), file };
    } catch (error) {
      const isMissing = isMissingFile(error);
      tried.push({ path: file, reason: isMissing ? 'no such file' : firstLine(error) });
      if (!isMissing) cause ??= error;
    }
  }
  throw createError('KV_ADDON_NOT_FOUND', { platform, nodeVersion: process.version, tried }, { cause });
}

function loadBuilt(file: string): unknown {
  return bindings({
    bindings: path.basename(file), module_root: path.dirname(file), try: [['module_root', 'bindings']],
  });
}

function loadPrebuilt(file: string): unknown {
  const bytes = readFileSync(file);
  const sums = readFileSync(path.join(packageFolder, 'prebuilds', 'SHA256SUMS'), 'utf8');
  const expected =
    sums.split('\n').find((line) => line.endsWith(` ${platform}/${path.basename(file)}`))?.split(' ', 1)[0];
  const sum = createHash('sha256').update(bytes).digest('hex');
  if (sum !== expected) {
    throw new Error(`its SHA-256 is ${sum}, and prebuilds/SHA256SUMS has ${expected ?? 'none for it'}`);
  }
  return requireFile(file);
}

function isMissingFile(error: unknown): boolean {
  const { code, tries } = error as { readonly code?: unknown; readonly tries?: unknown };
  return code === 'ENOENT' || code === 'MODULE_NOT_FOUND' || tries !== undefined;
}

function firstLine(error: unknown): string {
  return error instanceof Error ? (error.message.split('\n')[0] ?? '') : String(error);
}
