// Reads the file of `vkv serve --api-keys`: a key in each line, then its tenant and the most urgent that its requests
// can be, where they are given, with spaces between them. Lines that begin with # are comments. Errors name the line
// and never the key.

import { readFileSync } from 'node:fs';

import { createError } from '../base/errors.js';
import { printable } from '../base/format.js';
import type { ApiKey } from '../server/index.js';

/** Throws KV_INVALID_OPTION, and what reading the file throws. */
export function readApiKeys(file: string): ApiKey[] {
  const keys: ApiKey[] = [];
  const lines = readFileSync(file, 'utf8').split(/\r?\n/);
  lines.forEach((line, index) => {
    const words = line.trim().split(/\s+/);
    const [key = '', tenant, urgency = '0', ...more] = words;
    if (key === '' || key.startsWith('#')) return;
    const maxUrgency = /^\d{1,3}$/.test(urgency) ? Number(urgency) : 256;
    if (!/^[\x21-\x7e]+$/.test(key) || maxUrgency > 255 || more.length > 0) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner: 'vkv serve', option: '--api-keys',
        received: `${words.length} words`,
        expected: 'a file of lines `KEY`, `KEY TENANT` or `KEY TENANT URGENCY`, with keys of visible ASCII characters and an urgency of at most 255: ' +
          `see line ${index + 1} of ${printable(file)}`,
      });
    }
    keys.push({ key, tenant, ...words.length > 2 ? { maxUrgency } : {} });
  });
  if (keys.length > 0) return keys;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: 'vkv serve', option: '--api-keys', expected: `a file with at least one key, as ${printable(file)} is not`, received: 'none',
  });
}
