// Preloaded (`node --require`) into the processes of a test run: notes which functions and methods of the addon are called, in a
// file per process and thread of the folder VKV_ADDON_CALLS. scripts/node-versions.mjs compares them with what the addon has.

import { appendFileSync } from 'node:fs';
import Module = require('node:module');
import * as path from 'node:path';
import { threadId } from 'node:worker_threads';

type Call = (this: unknown, ...values: unknown[]) => unknown;
type Class = new (...values: unknown[]) => object;

const folder = process.env['VKV_ADDON_CALLS'];
const called = new Set<string>();
/** By class of the addon: the prototype that notes calls. */
const prototypes = new Map<object, object>();

/** Every function of an addon, `name` or `Class.method`. */
export function functionsOf(addon: Readonly<Record<string, unknown>>): string[] {
  return Object.entries(addon).flatMap(([name, value]) =>
    isClass(value) ? [name, ...methodsOf(value).map((method) => `${name}.${method}`)] : typeof value === 'function' ? [name] : []);
}

function isClass(value: unknown): value is Class {
  return typeof value === 'function' && /^[A-Z]/.test(value.name);
}

function methodsOf({ prototype }: Class): string[] {
  return Object.getOwnPropertyNames(prototype).filter((name) => name !== 'constructor');
}

/** At the first call, not at the end: some calls, and some tests, kill the process. */
function note(name: string): void {
  if (called.has(name)) return;
  called.add(name);
  appendFileSync(path.join(folder!, `${process.pid}-${threadId}`), `${name}\n`);
}

function noting(name: string, call: Call): Call {
  return function (...values) {
    note(name);
    return adopted(call.apply(this, values));
  };
}

/** Objects that the addon makes itself are of its own classes. */
function adopted(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  const prototype = prototypes.get(Object.getPrototypeOf(value) as object);
  return prototype === undefined ? value : Object.setPrototypeOf(value, prototype);
}

function notingClass(name: string, original: Class): Class {
  const noted = class extends original {
    constructor(...values: unknown[]) {
      note(name);
      super(...values);
    }
  };
  for (const method of methodsOf(original)) {
    const call = (original.prototype as Record<string, Call>)[method]!;
    Object.defineProperty(noted.prototype, method, { value: noting(`${name}.${method}`, call), configurable: true, writable: true });
  }
  prototypes.set(original.prototype as object, noted.prototype as object);
  return noted;
}

function noteAll(addon: Record<string, unknown>): void {
  for (const [name, value] of Object.entries(addon)) {
    if (isClass(value)) addon[name] = notingClass(name, value);
    else if (typeof value === 'function') addon[name] = noting(name, value as Call);
  }
}

if (folder !== undefined) {
  const extensions = (Module as unknown as { _extensions: Record<string, (module: NodeModule, file: string) => void> })._extensions;
  const loadAddon = extensions['.node']!;
  extensions['.node'] = (module, file) => {
    loadAddon(module, file);
    if ('NativeCache' in (module.exports as object)) noteAll(module.exports as Record<string, unknown>);
  };
}
