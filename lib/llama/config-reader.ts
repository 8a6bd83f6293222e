// ConfigReader: reads one object of a `config.json`, field by field. A number or flag of the wrong kind is an error that names the
// file and the field. null counts as missing. It knows no model.

import { modelError } from './model-error.js';

export type Json = Readonly<Record<string, unknown>>;

export class ConfigReader {
  readonly json: Json;
  readonly #file: string;
  /** Before a field's name: `rope_scaling.`. */
  readonly #place: string;

  /** `file` is for messages. */
  constructor(json: Json, file: string, place = '') {
    this.json = json;
    this.#file = file;
    this.#place = place;
  }

  /** Throws KV_MODEL_INVALID: this engine does not support `what`. */
  refuse(what: string, hint: string): never {
    throw modelError(`${this.#file}: ${what} is not supported. ${hint}`);
  }

  refuseUnless(name: string, supported: readonly unknown[], hint: string): void {
    const value = this.json[name];
    if (value !== undefined && value !== null && !supported.includes(value)) this.refuse(`${this.#place}${name} ${JSON.stringify(value)}`, hint);
  }

  /** A whole number above 0. */
  count(name: string, fallback?: number): number {
    return this.#number(name, fallback, 'a whole number', Number.isSafeInteger);
  }

  /** A number above 0. */
  positive(name: string, fallback?: number): number {
    return this.#number(name, fallback, 'a number', Number.isFinite);
  }

  /** Undefined where it is missing. */
  optional(name: string): number | undefined {
    return this.json[name] === undefined || this.json[name] === null ? undefined : this.positive(name);
  }

  /** False where it is missing. */
  flag(name: string): boolean {
    const value = this.json[name] ?? false;
    return typeof value === 'boolean' ? value : this.#wrong(name, 'true or false');
  }

  /** The object in a field; an empty one where it is missing. */
  within(name: string): ConfigReader {
    const value = this.json[name] ?? {};
    if (typeof value !== 'object' || Array.isArray(value)) this.#wrong(name, 'an object');
    return new ConfigReader(value as Readonly<Record<string, unknown>>, this.#file, `${this.#place}${name}.`);
  }

  #number(name: string, fallback: number | undefined, kind: string, isRight: (value: unknown) => boolean): number {
    const value = this.json[name] ?? fallback;
    return isRight(value) && (value as number) > 0 ? value as number : this.#wrong(name, `${kind} above 0`);
  }

  #wrong(name: string, wanted: string): never {
    const value = this.json[name];
    const found = value === undefined ? 'missing' : JSON.stringify(value);
    throw modelError(`${this.#file}: \`${this.#place}${name}\` is ${found}, but must be ${wanted}.`);
  }
}
