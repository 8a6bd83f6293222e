// Lives: what each running request did since the page saw it first, second by second; and the panel that tells the chosen one's: how long it
// waited, computed its prompt and answered, how its tokens grew, and with whom it shares memory. It stays when the request has ended.

import { byId, count, counted, drawn, element, facts, percent, slotList, time } from './format.js';
import type { Request, Slot, State } from './poll.js';

/** Samples of a life; of a longer one every second is dropped, again and again. */
const maxSamples = 160;

interface Life {
  request: Request;
  slot: Slot | undefined;
  readonly samples: { atMs: number; tokens: number }[];
  hasEnded: boolean;
}

export class Lives {
  readonly #running = new Map<number, Life>();
  #chosenSlot: number | undefined;
  #chosen: Life | undefined;

  /** Shows the life of what the slot has; undefined: none. */
  choose(slot: number | undefined, state: State | undefined): void {
    this.#chosenSlot = slot;
    this.#chosen = slot === undefined ? undefined : [...this.#running.values()].find(({ request }) => request.slot === slot);
    if (state !== undefined) this.#draw(state);
  }

  add(state: State): void {
    const seen = new Set<number>();
    for (const request of state.requests.running) {
      seen.add(request.number);
      const slot = state.cache.slots.find((each) => each.slot === request.slot);
      const life = this.#running.get(request.number) ?? { request, slot, samples: [], hasEnded: false };
      this.#running.set(request.number, life);
      life.request = request;
      life.slot = slot;
      life.samples.push({ atMs: request.ageMs, tokens: request.computedTokens });
      if (life.samples.length > maxSamples) for (let at = maxSamples - 1; at > 0; at -= 2) life.samples.splice(at, 1);
    }
    for (const request of state.requests.waiting) {
      const life = this.#running.get(request.number);
      if (life === undefined) continue;
      seen.add(request.number);
      life.request = request; // preempted: it waits again
      life.slot = undefined;
    }
    for (const [number, life] of this.#running) {
      if (seen.has(number)) continue;
      life.hasEnded = true;
      this.#running.delete(number);
    }
    this.#draw(state);
  }

  #draw(state: State): void {
    const panel = byId('life');
    byId('life-card').hidden = this.#chosenSlot === undefined;
    if (this.#chosenSlot === undefined) return;
    if (this.#chosen === undefined) {
      const slot = state.cache.slots.find((each) => each.slot === this.#chosenSlot);
      panel.replaceChildren(heading(`Slot ${this.#chosenSlot}`, slot === undefined ? 'free' : slot.state), element('p', { class: 'nothing' }, idleText(slot, state)));
      const next = [...this.#running.values()].find(({ request }) => request.slot === this.#chosenSlot);
      if (next !== undefined) this.#chosen = next;
      return;
    }
    panel.replaceChildren(...this.#lifeOf(this.#chosen, state));
  }

  #lifeOf({ request, slot, samples, hasEnded }: Life, state: State): Node[] {
    const { waitMs, firstTokenMs, ageMs, promptTokens, cachedTokens, generatedTokens, maxNewTokens, preemptions, urgency } = request;
    const status = hasEnded ? 'ended' : request.slot < 0 ? 'preempted, waits' : firstTokenMs === null ? 'computes its prompt' : 'answers';
    const spans = [
      ['wait', 'waited', waitMs ?? ageMs], ['prompt', 'prompt', waitMs === null ? 0 : (firstTokenMs ?? ageMs) - waitMs],
      ['answer', 'answer', firstTokenMs === null ? 0 : ageMs - firstTokenMs],
    ] as const;
    const shared = slot === undefined ? [] : sharersOf(slot, state);
    const rate = firstTokenMs === null || ageMs - firstTokenMs < 1 ? null : 1e3 * generatedTokens / (ageMs - firstTokenMs);
    return [
      heading(`Request ${count(request.number)}`, status),
      timeline(spans, ageMs),
      element('ul', { class: 'spans' }, ...spans.map(([name, title, ms]) => element('li', {}, element('span', { class: `swatch span-${name}` }), title, element('b', {}, time(ms))))),
      growth(samples, request),
      facts(
        ['prompt', `${counted(promptTokens, 'token')}, ${count(cachedTokens)} cached (${percent(promptTokens === 0 ? 0 : cachedTokens / promptTokens)})`],
        ['answer', `${count(generatedTokens)} of at most ${counted(maxNewTokens, 'token')}${rate === null ? '' : `, ${rate.toFixed(1)} a second`}`],
        ['memory', slot === undefined ? 'none now' : `slot ${slot.slot}: ${counted(slot.rows, 'row')} mapped, ${counted(slot.rows * state.cache.layout.pagesPerRow, 'page')}`],
        ['shares', slot === undefined ? '–' : shared.length === 0 ? 'nothing' : `with ${shared.length === 1 ? 'slot' : 'slots'} ${slotList(shared)}`],
        ['preempted', preemptions === 0 ? 'never' : counted(preemptions, 'time')], ...urgency > 0 ? [['urgency', count(urgency)] as const] : [],
      ),
    ];
  }
}

function heading(title: string, status: string): HTMLElement {
  return element('h3', {}, title, element('span', { class: 'pill' }, status));
}

function idleText(slot: Slot | undefined, { cache: { layout } }: State): string {
  if (slot === undefined) return 'Only addresses: nothing is mapped there, and no sequence has it.';
  if (slot.state === 'active') return 'A sequence has it that no request of this server owns.';
  const rows = counted(slot.rows, 'row');
  return slot.state === 'retiring' ? `Its sequence was released; queued work may still use its ${rows}.`
    : `Its sequence has ended. ${rows} (${counted(slot.rows * layout.pagesPerRow, 'page')}) stay mapped, for a request that begins with the same text or needs the memory.`;
}

/** Other slots that share rows with this one. */
function sharersOf({ slot, runs }: Slot, { cache: { slots } }: State): number[] {
  const ids = new Set(runs.filter(([, sharers]) => sharers > 1).map(([, , id]) => id));
  return slots.filter((other) => other.slot !== slot && other.runs.some(([, , id]) => ids.has(id))).map((other) => other.slot);
}

function timeline(spans: readonly (readonly [name: string, title: string, ms: number])[], ageMs: number): SVGSVGElement {
  let from = 0;
  return drawn('svg', { class: 'timeline', viewBox: '0 0 1000 22', preserveAspectRatio: 'none', role: 'img', 'aria-label': 'its time so far' },
    ...spans.map(([name, title, ms]) => {
      const rect = drawn('rect', { class: `span-${name}`, x: (1_000 * from / Math.max(1, ageMs)).toFixed(2), width: (1_000 * ms / Math.max(1, ageMs)).toFixed(2), y: 0, height: 22 },
        drawn('title', {}, `${title}: ${time(ms)}`));
      from += ms;
      return rect;
    }));
}

/** Its computed tokens over time, over bands for the cached part of the prompt and the rest of it. */
function growth(samples: readonly { readonly atMs: number; readonly tokens: number }[], { promptTokens, cachedTokens, maxNewTokens }: Request): HTMLElement {
  const most = Math.max(promptTokens + 1, samples.at(-1)?.tokens ?? 0, Math.min(promptTokens + maxNewTokens, 2 * (samples.at(-1)?.tokens ?? 0)));
  const endMs = Math.max(1, samples.at(-1)?.atMs ?? 1);
  const x = (ms: number): number => 400 * ms / endMs;
  const y = (tokens: number): number => 100 - 96 * tokens / most;
  const first = samples[0];
  const path = samples.map(({ atMs, tokens }) => `L${x(atMs).toFixed(1)} ${y(tokens).toFixed(1)}`).join('');
  const band = (from: number, to: number, name: string): SVGElement => drawn('rect', { class: name, x: 0, width: 400, y: y(to), height: Math.max(0, y(from) - y(to)) });
  const svg = drawn('svg', { viewBox: '0 0 400 100', preserveAspectRatio: 'none', role: 'img', 'aria-label': 'its tokens over time' },
    band(0, cachedTokens, 'band-cached'), band(cachedTokens, promptTokens, 'band-prompt'),
    drawn('line', { class: 'grid', x1: 0, x2: 400, y1: y(promptTokens), y2: y(promptTokens) }),
    ...first === undefined ? [] : [drawn('path', { class: 'line first', d: `M${x(first.atMs).toFixed(1)} ${y(first.tokens).toFixed(1)}${path}`, 'vector-effect': 'non-scaling-stroke' })]);
  return element('figure', { class: 'growth' }, svg, element('figcaption', {},
    `tokens with K and V over ${time(endMs)}; shaded: the prompt, darker what was cached of it`));
}
