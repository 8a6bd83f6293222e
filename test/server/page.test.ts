// The live page in a real browser: what it draws is the server's state; in the light, in the dark, and on a phone.

import test from 'ava';

import { BrowserLost, Chromium, chromium } from '../helpers/chromium.js';
import { cacheOf, requestsOf, secrets, WatchedWorld, type WatchedOptions } from './watched-world.js';
import { slow } from '../runner/slow.js';

const browserTest = chromium === undefined ? test.serial.skip : slow('draws in a browser');
const named = (title: string): string => (chromium === undefined ? `${title} (needs Chromium)` : title);

type Body = (browser: Chromium, world: WatchedWorld) => Promise<void>;

/** Runs a test in a new browser; once more in another where the browser itself was lost. */
async function withPage(options: WatchedOptions, body: Body): Promise<void> {
  try {
    await inBrowser(options, body);
  } catch (error) {
    if (!(error instanceof BrowserLost)) throw error;
    console.warn(`once more, since ${error.message}`);
    await inBrowser(options, body);
  }
}

async function inBrowser(options: WatchedOptions, body: Body): Promise<void> {
  const world = new WatchedWorld(options);
  await world.server.listen({ port: 0 });
  let browser: Chromium | undefined;
  try {
    browser = await Chromium.open();
    await browser.view({ width: 1_360, height: 900, scheme: 'light' });
    await body(browser, world);
  } finally {
    await browser?.close();
    await world.close();
  }
}

/** The sequence of a strip: the classes and places of what is drawn there. */
const strip = (slot: number): string => `[...document.querySelectorAll('[data-slot="${slot}"] rect:not(.edge)')].map((rect) => rect.getAttribute('class').split(' ')[0]).join()`;
/** How far the page is wider than the screen. */
const overflow = 'document.documentElement.scrollWidth - document.documentElement.clientWidth';
/** The contrast of text against its card, as WCAG counts it. */
const contrast = `(() => {
  const light = (colour) => { const [r, g, b] = colour.match(/[\\d.]+/g).map((c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  return Math.min(...['.tiles small', '.legend', '.tiles b', '.facts dt', '.pill'].map((name) => { const one = document.querySelector(name); let card = one;
    while (getComputedStyle(card).backgroundColor === 'rgba(0, 0, 0, 0)') card = card.parentElement;
    const [a, b] = [light(getComputedStyle(one).color), light(getComputedStyle(card).backgroundColor)]; return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }));
})()`;

/** Pauses once the page has set the timer of its next look, and asks for nothing else; whether it clears that timer. */
const pauseBetweenLooks = `new Promise((done) => {
  const { setTimeout, clearTimeout } = window;
  const timers = new Set();
  let hasSet = false;
  window.setTimeout = (...given) => {
    const timer = setTimeout(...given);
    hasSet = true;
    timers.add(timer);
    return timer;
  };
  window.clearTimeout = (timer) => { timers.delete(timer); clearTimeout(timer); };
  const look = () => {
    if (!hasSet) { setTimeout(look, 1); return; }
    document.getElementById('pause').click();
    Object.assign(window, { setTimeout, clearTimeout });
    done(timers.size === 0);
  };
  look();
})`;

browserTest(named('the page draws slots, sharing, memory and the queue, tells a chosen sequence, and fits a screen and a phone'), (t) => withPage({}, async (browser, world) => {
  await world.fill();
  await browser.go(`${world.url}/watch`);
  await browser.until("document.querySelectorAll('.slot').length === 12 && document.querySelector('#tile-requests b').textContent !== ''");
  const running = requestsOf(world.scheduler).running;
  t.is(await browser.evaluate('document.querySelector("#tile-requests b").textContent'), String(running.length));
  t.is(await browser.evaluate('document.title'), 'storyteller · virtual-kv');
  t.true(await browser.evaluate<number>('document.querySelectorAll("#shared li:not(.nothing)").length') > 1);
  t.is(await browser.evaluate('document.querySelectorAll("#queue rect").length'), world.scheduler.waitingRequests);
  t.regex(await browser.evaluate<string>(strip(running[0]!.slot)), /shared.*own/);

  const { slot, number } = running[0]!;
  await browser.evaluate(`document.querySelector('[data-slot="${slot}"]').click()`);
  await browser.until(`document.querySelector('#life h3')?.textContent.includes('Request ${number}')`);
  t.true(await browser.evaluate<number>('document.querySelectorAll(".slot.far").length') > 0, 'those that do not share with it fade');
  const tokens = await browser.evaluate<string>(`document.querySelector('[data-slot="${slot}"] .note').textContent`);
  await world.passes(30);
  await browser.until(`document.querySelector('[data-slot="${slot}"] .note').textContent !== '${tokens}'`);
  await browser.until("document.querySelectorAll('#charts .line')[0].getAttribute('d').includes('L')");
  await browser.evaluate("document.getElementById('scale-whole').click()");
  t.regex(await browser.evaluate<string>('document.getElementById("axis").textContent'), /4,096 tokens$/);
  await browser.evaluate("document.getElementById('scale-fit').click()");

  for (const view of [
    { name: 'light', width: 1_360, height: 900, scheme: 'light' }, { name: 'dark', width: 1_360, height: 900, scheme: 'dark' },
    { name: 'phone', width: 390, height: 844, scheme: 'light', isPhone: true }, { name: 'phone-dark', width: 360, height: 740, scheme: 'dark', isPhone: true },
  ] as const) {
    await browser.view(view);
    t.true(await browser.evaluate<number>(overflow) <= 0, `${view.name}: nothing is wider than the screen`);
    t.true(await browser.evaluate<number>(contrast) >= 4.5, `${view.name}: ${await browser.evaluate<number>(contrast)}`);
    t.true((await browser.screenshot(view.name)).length > 20_000);
  }
  t.is(await browser.evaluate('getComputedStyle(document.getElementById("life-card")).order'), '2', 'on a phone the life follows the map');
  const text = await browser.evaluate<string>('document.documentElement.outerHTML');
  for (const secret of Object.values(secrets)) t.false(text.includes(secret));
  t.deepEqual(browser.errors, []);
  t.deepEqual([...new Set(browser.requests.map((url) => new URL(url).origin))].filter((origin) => origin !== 'null'), [world.url]);
}));

browserTest(named('the page asks for the key, keeps it for the tab, and asks nothing while it is paused'), (t) => withPage({ apiKeys: ['sesame'] }, async (browser, world) => {
  world.engine.hold();
  await browser.go(`${world.url}/watch`);
  const give = (key: string): Promise<unknown> => browser.evaluate(`document.getElementById('key').value = '${key}'; document.querySelector('#key-form button').click()`);
  await browser.until("!document.getElementById('key-card').hidden");
  await give('open');
  await browser.until("document.getElementById('key-problem').textContent !== ''");
  await give('sesame');
  await browser.until("!document.getElementById('content').hidden && document.getElementById('status').className === 'status live'");
  t.true(await browser.evaluate('document.getElementById("key-card").hidden'));
  t.false((await browser.evaluate<string>('document.documentElement.outerHTML')).includes('sesame'));
  t.true(await browser.evaluate<boolean>(pauseBetweenLooks), 'the timer of the next look is cleared');
  const asked = browser.requests.length;
  await browser.until("document.getElementById('status-text').textContent === 'paused'");
  t.is(browser.requests.length, asked);
  await browser.evaluate("document.getElementById('pause').click()");
  await browser.until("document.getElementById('status').className === 'status live'");
  await world.server.close();
  await browser.until("document.getElementById('status').className === 'status lost'");
}));

browserTest(named('256 slots fit the page'), (t) => withPage({ slots: 256, budgetBytes: 2 ** 26 }, async (browser, world) => {
  for (let number = 1; number < 80; number += 1) world.ask(number, 200);
  await world.passes(30);
  await browser.go(`${world.url}/watch`);
  await browser.until("document.querySelectorAll('.slot').length === 256");
  t.true(await browser.evaluate<number>(overflow) <= 0);
  const slots = "document.getElementById('slots')";
  t.true(await browser.evaluate<number>(`${slots}.scrollWidth - ${slots}.clientWidth`) <= 0, 'columns do not run out of the card');
  t.is(await browser.evaluate('document.querySelectorAll(".slot:not([hidden])").length'), cacheOf(world.cache).slots.length, 'slots without memory are left out');
  await browser.view({ width: 360, height: 740, scheme: 'light', isPhone: true });
  t.true(await browser.evaluate<number>(overflow) <= 0);
  t.true((await browser.screenshot('many')).length > 20_000);
  t.deepEqual(browser.errors, []);
}));
