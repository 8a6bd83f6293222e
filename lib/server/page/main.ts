// The live page: asks the server for its state and draws it. It only looks: nothing here changes anything there.

import { Charts } from './charts.js';
import { byId, bytes, count, counted, element, percent, short, time } from './format.js';
import { Lives } from './life.js';
import { AddressMap, drawShared } from './map.js';
import { drawAge, drawMemory, drawQueue, drawTiers } from './memory.js';
import { Poll, type State } from './poll.js';

let last: State | undefined;
const charts = new Charts();
const lives = new Lives();
const map = new AddressMap((slot) => {
  lives.choose(slot, last);
  if (slot !== undefined && matchMedia('(max-width: 60rem)').matches) byId('life-card').scrollIntoView({ block: 'nearest', behavior: 'smooth' });
});

function tile(id: string, value: string, note: string): void {
  byId(id).replaceChildren(element('b', {}, value), element('small', {}, note));
}

function draw(state: State): void {
  last = state;
  const { recent, requests, totals, prefixes, cache: { layout, pages, pool } } = state;
  document.title = `${state.modelName} · virtual-kv`;
  byId('model').textContent = state.modelName;
  byId('about').textContent = `${state.driver} · ${counted(layout.slots, 'slot')} of ${count(layout.maxTokens)} tokens · ${layout.kind}, pages of ${bytes(layout.pageBytes)} · ` +
    `up ${time(state.uptimeMs)} · virtual-kv ${state.version}`;
  tile('tile-requests', count(requests.running.length), `running, ${count(requests.waitingCount)} waiting`);
  tile('tile-speed', short(recent.tokensPerSecond), `tokens a second, ${short(recent.stepsPerSecond)} steps`);
  tile('tile-hits', percent(recent.hitRate ?? prefixes.recentHitRate), `of prompts cached, ${percent(prefixes.hitRate)} since the start`);
  tile('tile-first', time(recent.firstToken.p50), `to the first token, p90\u00A0${time(recent.firstToken.p90)}`);
  tile('tile-between', time(recent.betweenTokens.p50), `between tokens, p90\u00A0${time(recent.betweenTokens.p90)}`);
  tile('tile-memory', bytes((pages.running + pages.cached + pages.idle) * layout.pageBytes), `mapped of ${bytes(pool.budgetPages * layout.pageBytes)}`);
  tile('tile-answered', count(totals.completedRequests), `answered, ${count(totals.failedRequests)} failed, ${counted(totals.preemptions, 'preemption')}`);
  drawShared(map.draw(state), map, state);
  charts.draw(state);
  lives.add(state);
  drawMemory(state);
  drawAge(state);
  drawQueue(state);
  drawTiers(state);
  byId('whole-note').textContent = `A strip is the addresses of a slot, ${count(layout.maxTokens)} tokens; all slots have ${bytes(layout.virtualBytes)} of addresses. Coloured parts have memory. Choose a strip to follow its sequence.`;
}

function showStatus(kind: 'live' | 'paused' | 'lost', text: string): void {
  byId('status').className = `status ${kind}`;
  byId('status-text').textContent = text;
}

const poll = new Poll({
  onState: (state) => {
    byId('key-card').hidden = true;
    byId('content').hidden = false;
    showStatus(state.isClosing ? 'lost' : 'live', state.isClosing ? 'ending' : 'live');
    draw(state);
  },
  onKeyWanted: (wasKey) => {
    byId('key-card').hidden = false;
    byId('content').hidden = true;
    byId('key-problem').textContent = wasKey ? 'The server does not know this key.' : '';
    showStatus('paused', 'wants a key');
    byId('key').focus();
  },
  onFailure: (problem) => { showStatus('lost', problem); },
});

byId('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const input = byId('key') as HTMLInputElement;
  poll.useKey(input.value);
  input.value = '';
});
byId('pause').addEventListener('click', () => {
  poll.pause(!poll.isPaused);
  byId('pause').textContent = poll.isPaused ? 'Go on' : 'Pause';
  if (poll.isPaused) showStatus('paused', 'paused');
});
poll.start();
