// Values of a model's config file: field names differ by model family, and null and 0 mean "not given". Checks types alone.

/** A JSON object. */
export type Json = Readonly<Record<string, unknown>>;

/** The first of these names that holds a count. */
export function numberIn(config: Json, keys: readonly string[]): number | undefined {
  return keys.map((key) => config[key]).find(isCount);
}

/** The first of these names that holds a list with something in it. */
export function listIn(config: Json, keys: readonly string[]): readonly unknown[] | undefined {
  return keys.map((key) => config[key]).find((value): value is readonly unknown[] => Array.isArray(value) && value.length > 0);
}

export function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0;
}

export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
