// WatchPage: the files of the live page, read when they are first asked for. They hold no data and need no key; what they show they ask of
// `/watch/state`, with the key that its user gives. Everything comes from this server: their headers forbid all else.

import { readFileSync } from 'node:fs';
import path = require('node:path');

import { createError } from '../base/errors.js';

/** A file, and the headers that it is sent with. */
export interface PageFile {
  readonly body: string;
  readonly headers: Readonly<Record<string, string>>;
}

const scripts = ['main', 'charts', 'format', 'life', 'map', 'memory', 'poll'] as const;

/** Addresses below `/watch`, and the files there. */
const files = new Map<string, readonly [file: string, type: string]>([
  ['', ['page.html', 'text/html']], ['page.css', ['page.css', 'text/css']],
  ...scripts.map((name) => [`${name}.js`, [`${name}.js`, 'text/javascript']] as const),
]);

const securityHeaders = {
  'content-security-policy': "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer', 'cache-control': 'no-cache', 'cross-origin-resource-policy': 'same-origin',
};

export class WatchPage {
  readonly #folder: string;
  readonly #read = new Map<string, PageFile>();

  /** @param folder Where the files are; in a bundle beside it (docs/install.md). */
  constructor(folder: string = path.join(__dirname, 'page')) {
    this.#folder = folder;
  }

  /** Whether the page has a file of this name. */
  static has(name: string): boolean {
    return files.has(name);
  }

  /** A file by its address below `/watch`; '': the page itself. Throws KV_REQUEST_INVALID where it is not installed. */
  file(name: string): PageFile {
    const known = this.#read.get(name);
    if (known !== undefined) return known;
    const [file, type] = files.get(name)!;
    let body: string;
    try {
      body = readFileSync(path.join(this.#folder, file), 'utf8');
    } catch (cause) {
      throw createError('KV_REQUEST_INVALID', {
        reason: 'not-found', problem: "the live page's files are not beside the server's", hint: 'Copy `dist/server/page` there, as docs/install.md shows.',
      }, { cause });
    }
    const made = { body, headers: { ...securityHeaders, 'content-type': `${type}; charset=utf-8` } };
    this.#read.set(name, made);
    return made;
  }
}
