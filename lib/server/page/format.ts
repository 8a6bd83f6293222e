// Numbers as text for the page, and elements made of them. Text is only ever set as text. A number and its unit have a space between them
// that does not break.

const plain = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

const space = '\u00A0';

export function count(value: number): string {
  return plain.format(value);
}

/** `1 row`, `2 rows`. */
export function counted(value: number, one: string): string {
  return `${count(value)} ${one}${value === 1 ? '' : 's'}`;
}

/** Three figures: `0.42`, `4.2`, `42`, `4,200`. */
export function short(value: number): string {
  if (value === 0 || value >= 100) return count(value);
  return value >= 10 ? value.toFixed(value % 1 < 0.05 ? 0 : 1) : value.toFixed(value >= 1 ? 1 : 2);
}

export function bytes(value: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  let left = value;
  for (; left >= 1_024 && unit < units.length - 1; unit += 1) left /= 1_024;
  return `${left >= 100 || left % 1 === 0 ? count(left) : left.toFixed(1)}${space}${units[unit]!}`;
}

export function time(ms: number | null): string {
  if (ms === null) return '–';
  if (ms === 0) return '0';
  if (ms < 1_000) return `${ms < 10 ? ms.toFixed(1) : count(ms)}${space}ms`;
  if (ms < 60_000) return `${(ms / 1e3).toFixed(1)}${space}s`;
  const minutes = Math.floor(ms / 60_000);
  return minutes < 60 ? `${minutes}${space}min ${count(Math.floor(ms / 1e3) % 60)}${space}s` : `${count(Math.floor(minutes / 60))}${space}h ${minutes % 60}${space}min`;
}

export function percent(share: number | null): string {
  if (share !== null && share > 0 && share < 0.0005) return `< 0.1${space}%`;
  return share === null ? '–' : `${share > 0 && share < 0.1 ? (100 * share).toFixed(1) : count(100 * share)}${space}%`;
}

/** Slot numbers, the first few of many. */
export function slotList(slots: readonly number[]): string {
  const shown = slots.slice(0, 8).join(', ');
  return slots.length > 8 ? `${shown} and ${count(slots.length - 8)} more` : shown;
}

/** An element with attributes and content. */
export function element<K extends keyof HTMLElementTagNameMap>(
  name: K, attributes: Readonly<Record<string, string>> = {}, ...content: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...content);
  return made;
}

/** The same of SVG. */
export function drawn<K extends keyof SVGElementTagNameMap>(
  name: K, attributes: Readonly<Record<string, string | number>> = {}, ...content: (Node | string)[]
): SVGElementTagNameMap[K] {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, String(value));
  made.append(...content);
  return made;
}

/** The element of the page with this id. */
export function byId(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found;
}

/** A definition list: names and values. */
export function facts(...rows: readonly (readonly [name: string, value: string])[]): HTMLElement {
  return element('dl', { class: 'facts' }, ...rows.map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, value))));
}
