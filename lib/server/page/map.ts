// AddressMap: one strip per slot, its addresses from left to right: what is mapped of them, which tokens are valid, and which rows it shares
// with other slots. A strip can be chosen; those that share with it stay bright, the others fade.

import { byId, bytes, count, counted, drawn, element, slotList } from './format.js';
import type { Slot, State } from './poll.js';

const shareColours = 6;
/** Strips that stand below each other over the whole width; more are narrower, and those without memory are left out. */
const maxWideStrips = 24;

/** A shared run, and who maps it. */
export interface SharedRun {
  readonly id: number;
  readonly fromRow: number;
  readonly endRow: number;
  readonly sharers: number;
  readonly slots: readonly number[];
}

/** Height of the lane of the full set, and of one of a window's below it. */
const laneHeight = 16;
const windowHeight = 6;

interface Strip {
  readonly button: HTMLButtonElement;
  readonly svg: SVGSVGElement;
  readonly note: HTMLElement;
}

export class AddressMap {
  readonly #strips = new Map<number, Strip>();
  readonly #onChoose: (slot: number | undefined) => void;
  /** Which colour a shared run has, by its number, while it is there. */
  readonly #colours = new Map<number, number>();
  #isWhole = false;
  #chosen: number | undefined;
  #state: State | undefined;

  constructor(onChoose: (slot: number | undefined) => void) {
    this.#onChoose = onChoose;
    for (const [id, isWhole] of [['scale-fit', false], ['scale-whole', true]] as const) {
      byId(id).addEventListener('click', () => {
        this.#isWhole = isWhole;
        byId('scale-fit').setAttribute('aria-pressed', String(!isWhole));
        byId('scale-whole').setAttribute('aria-pressed', String(isWhole));
        if (this.#state !== undefined) this.draw(this.#state);
      });
    }
  }

  /** The colour of a shared run: 1 … 6. */
  colourOf(id: number): number {
    return this.#colours.get(id) ?? 0;
  }

  draw(state: State): SharedRun[] {
    this.#state = state;
    const { cache: { slots, layout }, requests } = state;
    const shared = sharedRuns(slots);
    this.#giveColours(shared);
    const tokens = new Map(requests.running.map((request) => [request.slot, request]));
    const bySlot = new Map(slots.map((slot) => [slot.slot, slot]));
    const scaleTokens = this.#isWhole ? layout.maxTokens : usedTokens(state); // the last row may be longer than a sequence
    this.#drawAxis(scaleTokens, state);
    const list = byId('slots');
    const isMany = layout.slots > maxWideStrips;
    list.classList.toggle('many', isMany);
    const kin = this.#kin(slots);
    let free = Math.max(0, layout.slots - slots.length); // there are more slots than sequences where tiers are: for transfers
    const last = slots.reduce((most, { slot }) => Math.max(most, slot), layout.slots - 1);
    for (let number = 0; number <= Math.max(last, this.#strips.size - 1); number += 1) {
      const strip = this.#strips.get(number) ?? this.#add(number, list);
      const slot = bySlot.get(number);
      const isShown = slot !== undefined || (free -= 1) >= 0;
      const request = tokens.get(number);
      strip.button.hidden = (isMany ? slot === undefined : !isShown) && number !== this.#chosen;
      strip.button.classList.toggle('free', slot === undefined || slot.state === 'idle');
      strip.button.classList.toggle('chosen', number === this.#chosen);
      strip.button.classList.toggle('far', kin !== undefined && !kin.has(number));
      strip.button.setAttribute('aria-pressed', String(number === this.#chosen));
      strip.note.textContent = slot === undefined ? '' : slot.state === 'idle' ? 'cached' : count(slot.length);
      strip.button.title = slot === undefined ? `slot ${number}: free, only addresses` : titleOf(slot, layout.tokensPerRow, request?.number);
      this.#drawStrip(strip.svg, slot, scaleTokens, state);
    }
    this.#drawWindows(state);
    return shared;
  }

  choose(slot: number | undefined): void {
    this.#chosen = slot === this.#chosen ? undefined : slot;
    this.#onChoose(this.#chosen);
    if (this.#state !== undefined) this.draw(this.#state);
  }

  #add(number: number, list: HTMLElement): Strip {
    const svg = drawn('svg', { class: 'strip', 'aria-hidden': 'true', preserveAspectRatio: 'none', viewBox: '0 0 1000 16' });
    const label = element('span', { class: 'name' }, String(number));
    const note = element('span', { class: 'note' });
    const button = element('button', { type: 'button', class: 'slot', 'data-slot': String(number), 'aria-pressed': 'false' }, label, svg, note);
    button.addEventListener('click', () => { this.choose(number); });
    list.append(button);
    const strip = { button, svg, note };
    this.#strips.set(number, strip);
    return strip;
  }

  /** The lane of the full set, and below it one for each set with a window: its rows lie where its tokens are. */
  #drawStrip(svg: SVGSVGElement, slot: Slot | undefined, scaleTokens: number, { cache: { layout: { tokensPerRow, layers }, windows } }: State): void {
    const scaleRows = scaleTokens / tokensPerRow; // may be a part of one
    const full = layers > 0 ? laneHeight : 0;
    const height = full + windowHeight * windows.length;
    svg.setAttribute('viewBox', `0 0 1000 ${height}`);
    svg.style.height = windows.length === 0 ? '' : `${height / laneHeight * 1.05}rem`;
    const x = (rows: number): number => Math.min(1_000, 1_000 * rows / scaleRows);
    const box = (from: number, to: number, name: string): SVGElement =>
      drawn('rect', { class: name, x: x(from).toFixed(2), width: Math.max(0, x(to) - x(from)).toFixed(2), y: 0, height: 16 });
    const parts: SVGElement[] = [];
    if (slot !== undefined) {
      const { state, length, prepared, earmarked, rows, runs, isQuarantined } = slot;
      const filled = Math.min(rows, length / tokensPerRow);
      const isIdle = state === 'idle';
      let from = 0;
      for (const [endRow, sharers, id] of runs) {
        const end = Math.min(endRow, isIdle ? endRow : Math.max(from, filled));
        if (sharers > 1) parts.push(box(from, end, `shared share-${this.colourOf(id)}${isIdle ? ' idle' : ''}`));
        else parts.push(box(from, end, isIdle ? 'kept' : 'own'));
        if (end < endRow) parts.push(box(Math.max(from, end), endRow, 'ahead'));
        from = endRow;
      }
      if (prepared > 0) parts.push(box(filled, Math.min(rows, (length + prepared) / tokensPerRow), 'computing'));
      const earmarkedRows = Math.ceil(earmarked / tokensPerRow);
      if (earmarkedRows > rows) parts.push(box(rows, earmarkedRows, 'earmarked'));
      if (scaleRows <= 160) for (let row = 1; row < rows; row += 1) parts.push(drawn('rect', { class: 'edge', x: (x(row) - 0.6).toFixed(2), width: 1.2, y: 0, height: 16 }));
      for (const [at, [first, end]] of slot.windows.entries()) {
        const rowTokens = windows[at]!.tokensPerRow;
        const place = (row: number): number => Math.min(1_000, 1_000 * row * rowTokens / scaleTokens);
        const y = full + windowHeight * at + 1;
        parts.push(drawn('rect', {
          class: 'window', x: place(first).toFixed(2), width: (place(end) - place(first)).toFixed(2), y, height: windowHeight - 1,
        }));
      }
      if (isQuarantined) parts.push(box(0, scaleRows, 'quarantined'));
    }
    svg.replaceChildren(...parts);
  }

  /** What the thin lanes are; nothing where all layers keep the same. */
  #drawWindows({ cache: { windows, layout } }: State): void {
    const list = byId('windows');
    list.hidden = windows.length === 0;
    list.replaceChildren(...layout.layers > 0 ? [element('li', {}, element('span', { class: 'swatch own' }), `${counted(layout.layers, 'layer')} keep all tokens`)] : [],
      ...windows.map(({ kind, tokens, layers, mappedPages }) => element('li', {}, element('span', { class: 'swatch window' }),
        `${counted(layers, 'layer')} keep a ${kind} of ${counted(tokens, 'token')}: ${bytes(mappedPages * layout.pageBytes)} mapped`)));
  }

  #drawAxis(tokens: number, { cache: { layout } }: State): void {
    const axis = byId('axis');
    if (layout.slots > maxWideStrips) {
      axis.replaceChildren(`each strip: tokens 0 … ${count(Math.round(tokens))}; slots without memory are left out`);
      return;
    }
    const step = tickStep(tokens, layout.tokensPerRow);
    const ticks = Array.from({ length: Math.floor(tokens / step) + 1 }, (_, at) => at * step).filter((at) => at <= 0.75 * tokens);
    axis.replaceChildren(...[...ticks, tokens].map((at) => {
      const tick = element('span', {}, at === tokens ? `${count(Math.round(at))} tokens` : count(at));
      tick.style.left = `${(100 * at / tokens).toFixed(2)}%`; // as an attribute the page's policy refuses it
      return tick;
    }));
  }

  /** Slots that share rows with the chosen one, and it; undefined: none is chosen, or it shares nothing. */
  #kin(slots: readonly Slot[]): Set<number> | undefined {
    const chosen = slots.find(({ slot }) => slot === this.#chosen);
    const ids = new Set(chosen?.runs.filter(([, sharers]) => sharers > 1).map(([, , id]) => id));
    if (chosen === undefined || ids.size === 0) return undefined;
    return new Set(slots.filter(({ runs }) => runs.some(([, , id]) => ids.has(id))).map(({ slot }) => slot));
  }

  /** A run keeps its colour while it is there; a new one gets that which the fewest have. */
  #giveColours(shared: readonly SharedRun[]): void {
    const ids = new Set(shared.map(({ id }) => id));
    for (const id of this.#colours.keys()) if (!ids.has(id)) this.#colours.delete(id);
    const used = new Array<number>(shareColours + 1).fill(0);
    for (const colour of this.#colours.values()) used[colour]! += 1;
    for (const id of ids) {
      if (this.#colours.has(id)) continue;
      let best = 1;
      for (let colour = 2; colour <= shareColours; colour += 1) if (used[colour]! < used[best]!) best = colour;
      used[best]! += 1;
      this.#colours.set(id, best);
    }
  }
}

/** Tokens from one number of the axis to the next: whole rows where they have whole tokens, and at most six of them. */
function tickStep(tokens: number, tokensPerRow: number): number {
  const unit = Number.isInteger(tokensPerRow) && tokensPerRow <= tokens ? tokensPerRow : 1;
  let step = unit;
  while (tokens / step > 6) step *= 2;
  return step;
}

/** Tokens up to which slots have memory or will have, and a little more. */
function usedTokens({ cache: { slots, layout: { maxTokens, tokensPerRow }, windows } }: State): number {
  const most = Math.max(1, ...slots.map(({ rows, earmarked, windows: mapped }) =>
    Math.max(rows * tokensPerRow, earmarked, ...mapped.map(([, end], at) => end * windows[at]!.tokensPerRow))));
  const step = Math.min(tokensPerRow, maxTokens / 12);
  return Math.min(maxTokens, Math.ceil(most * 13 / 12 / step) * step);
}

/** Runs that several slots map, those with the most slots and rows first. */
function sharedRuns(slots: readonly Slot[]): SharedRun[] {
  const runs = new Map<number, SharedRun & { readonly slots: number[] }>();
  for (const { slot, runs: own } of slots) {
    let fromRow = 0;
    for (const [endRow, sharers, id] of own) {
      if (sharers > 1) {
        const known = runs.get(id);
        if (known === undefined) runs.set(id, { id, fromRow, endRow, sharers, slots: [slot] });
        else known.slots.push(slot);
      }
      fromRow = endRow;
    }
  }
  return [...runs.values()].sort((a, b) => b.sharers * (b.endRow - b.fromRow) - a.sharers * (a.endRow - a.fromRow));
}

function titleOf({ slot, state, length, rows, runs }: Slot, tokensPerRow: number, request: number | undefined): string {
  const shared = runs.reduce((sum, [endRow, sharers], at) => sum + (sharers > 1 ? endRow - (at === 0 ? 0 : runs[at - 1]![0]) : 0), 0);
  const who = request === undefined ? state : `request ${request}`;
  const mapped = rows === 0 ? '' : `, ${counted(rows, 'row')} of ${count(Math.round(tokensPerRow))} tokens mapped, ${count(shared)} shared`;
  return `slot ${slot}: ${who}, ${counted(length, 'token')}${mapped}`;
}

/** The list of shared prefixes beside the map. */
export function drawShared(shared: readonly SharedRun[], map: AddressMap, { cache: { layout } }: State): void {
  if (shared.length > 0) byId('shared-card').hidden = false;
  const shown = shared.slice(0, 6);
  const rows = shown.map((run) => {
    const length = run.endRow - run.fromRow;
    const saved = (run.sharers - 1) * length * layout.pagesPerRow;
    return element('li', {}, element('span', { class: `swatch share-${map.colourOf(run.id)}` }),
      element('span', {}, element('b', {}, `${counted(run.sharers, 'slot')}`), ` share ${counted(length, 'row')} (${count(Math.round(length * layout.tokensPerRow))} tokens)`,
        element('small', {}, `slots ${slotList(run.slots)}; ${counted(saved, 'page')} saved`)));
  });
  const rest = shared.length - shown.length;
  byId('shared').replaceChildren(...rows.length === 0 ? [element('li', { class: 'nothing' }, 'No rows are shared at this moment.')] : rows,
    ...rest > 0 ? [element('li', { class: 'nothing' }, `and ${count(rest)} more`)] : []);
}
