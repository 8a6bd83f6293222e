// Formats numbers, sizes and lists for people, and parses sizes such as `2MiB`. Error messages, tables and reports
// share these functions, so that a number looks the same everywhere. Pure; English only.

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'] as const;

/** Bytes in one of each unit that `parseBytes` accepts, by lower-case name. `kb` … `tb` are powers of 1,000. */
const unitBytes: Readonly<Record<string, number>> = {
  b: 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40, pib: 2 ** 50,
  kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, pb: 1e15,
};

/** One formatter per number of decimals: making one costs more than all its uses in a message. */
const formatters: Intl.NumberFormat[] = [];

/** `1234567` → `1,234,567`; at most `decimals` digits after the point, zeros at the end dropped. */
export function formatNumber(value: number, decimals = 0): string {
  formatters[decimals] ??= new Intl.NumberFormat('en-US', { maximumFractionDigits: decimals });
  return formatters[decimals].format(value);
}

/** `2097152` → `2 MiB`: in the largest unit that gives at least 1, with at most `decimals` digits after the point. */
export function formatBytes(bytes: number, decimals = 1): string {
  let value = bytes;
  let unit = 0;
  // The last digit shown may round 1,023.97 up to 1,024, which belongs to the next unit.
  while (Number(Math.abs(value).toFixed(decimals)) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${formatNumber(value, decimals)} ${units[unit]}`;
}

/** `formatCount('page', 1)` → `1 page`, `formatCount('page', 2040)` → `2,040 pages`. */
export function formatCount(noun: string, value: number, plural = `${noun}s`): string {
  return `${formatNumber(value)} ${value === 1 ? noun : plural}`;
}

/** `[1, 2, 4]` → `1, 2 or 4`. */
export function formatList(items: readonly (number | string)[], conjunction: 'or' | 'and' = 'or'): string {
  const texts = items.map((item) => (typeof item === 'number' ? formatNumber(item) : item));
  const last = texts.pop() ?? '';
  return texts.length === 0 ? last : `${texts.join(', ')} ${conjunction} ${last}`;
}

/** An address as a debugger prints it: `0x7f3a40000000`. */
export function formatAddress(address: number | bigint): string {
  return `0x${address.toString(16)}`;
}

/**
 * Parses `2MiB`, `1.5 GiB`, `64kib`, `80GB`, `2097152` to bytes. `KiB` … `PiB` are powers of 1,024, `kB` … `PB` powers
 * of 1,000, and case does not matter. Returns undefined when the text is no size, or not a whole number of bytes.
 */
export function parseBytes(text: string): number | undefined {
  const match = /^\s*(\d[\d,_]*(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text);
  if (match === null) return undefined;
  const scale = unitBytes[(match[2] || 'b').toLowerCase()];
  if (scale === undefined) return undefined;
  const bytes = Number(match[1]!.replace(/[,_]/g, '')) * scale;
  return Number.isSafeInteger(bytes) ? bytes : undefined;
}

/** C0 and C1 controls, DEL, line separators, and marks that change the writing direction. */
// eslint-disable-next-line no-control-regex
const unprintable = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/**
 * Makes text from outside (a file, its name, a value) safe for one line of a terminal, log or report: spells out
 * controls, `\\u001b`.
 */
export function printable(text: string): string {
  return text.replace(unprintable, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

/** JSON indented by two spaces, every string of it `printable`. */
export function printableJson(value: unknown): string {
  return JSON.stringify(value, undefined, 2).split('\n').map(printable).join('\n');
}
