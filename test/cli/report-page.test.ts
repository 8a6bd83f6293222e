// The report of a replay in a real browser: legible on a screen and on a phone, in the light and in the dark; a moment that is pointed at, or
// tapped, says its numbers.
// Slow: it draws in a browser.

import * as path from 'node:path';
import { pathToFileURL } from 'node:url';

import test from 'ava';

import { Chromium, chromium } from '../helpers/chromium.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { runVkv } from './run-vkv.js';

const browserTest = chromium === undefined ? test.skip : test;
const title = `a report fits a screen and a phone, and says the numbers of a moment that is pointed at${chromium === undefined ? ' (needs Chromium)' : ''}`;

const views = [
  { name: 'report', width: 1_280, height: 900, scheme: 'light' }, { name: 'report-dark', width: 1_280, height: 900, scheme: 'dark' },
  { name: 'report-phone', width: 390, height: 844, scheme: 'light', isPhone: true }, { name: 'report-phone-dark', width: 360, height: 740, scheme: 'dark', isPhone: true },
] as const;

/** The chart that is seen, its smallest letters as CSS pixels on the screen, and how much wider than the screen the page is. */
const seen = `(() => {
  const figures = [...document.querySelectorAll('figure')].filter((figure) => getComputedStyle(figure).display !== 'none');
  const chart = figures[0].querySelector('svg');
  const scale = chart.getBoundingClientRect().width / chart.viewBox.baseVal.width;
  const letters = [...figures[0].querySelectorAll('text')].map((text) => parseFloat(getComputedStyle(text).fontSize) * scale);
  return { figures: figures.map(({ className }) => className), letters: Math.min(...letters), overflow: document.documentElement.scrollWidth - innerWidth };
})()`;

/** Brings a moment in the middle of the chart on the screen; where that is. */
const middle = `(() => {
  const figure = [...document.querySelectorAll('figure')].find((one) => getComputedStyle(one).display !== 'none');
  const slices = [...figure.querySelectorAll('.slice')];
  const slice = slices[slices.length >> 1];
  slice.scrollIntoView({ block: 'center' });
  const { left, top, width, height } = slice.getBoundingClientRect();
  return { x: left + width / 2, y: top + height / 2 };
})()`;

/** What the boxes that are seen say. */
const said = `[...document.querySelectorAll('.look')].filter((look) => { const box = look.querySelector('.box'); return box.getBoundingClientRect().width > 0 && getComputedStyle(box).opacity === '1'; })
  .map((look) => [...look.querySelectorAll('text')].map((text) => text.textContent).join('; '))`;

browserTest(title, async (t) => {
  const browser = await Chromium.open();
  try {
    const file = path.join(folderOf(t), 'report.html');
    const { exitCode, stderr } = await runVkv(['replay', '--generate', '60', '--report', file]);
    t.is(exitCode, 0, stderr);
    await browser.go(pathToFileURL(file).href);
    await browser.until('document.readyState === "complete" && document.querySelector(".look") !== null');
    for (const view of views) {
      const isPhone = 'isPhone' in view;
      await browser.view(view);
      const { figures, letters, overflow } = await browser.evaluate<{ figures: string[]; letters: number; overflow: number }>(seen);
      t.deepEqual(figures, [isPhone ? 'narrow' : 'wide'], view.name);
      t.true(overflow <= 0, `${view.name}: ${overflow} pixels wider than the screen`);
      t.true(letters >= 9, `${view.name}: letters of ${letters} pixels`);
      const { x, y } = await browser.evaluate<{ x: number; y: number }>(middle);
      await browser.pointAt(1, 1); // a tap of the view before may have left the pointer where it was
      await browser.until(`${said}.length === 0`);
      if (isPhone) await browser.tap(x, y);
      else await browser.pointAt(x, y);
      await browser.until(`${said}.length === 1`);
      t.regex((await browser.evaluate<string[]>(said))[0]!, /^[\d,]+ forward passes; in the pool [\d.]+ [KMG]iB; mapped [\d.]+ [KMG]?i?B; used [\d.]+ [KMG]?i?B$/, view.name);
      t.true((await browser.screenshot(view.name)).length > 20_000);
      await browser.evaluate('document.activeElement.blur()');
      await browser.pointAt(1, 1);
      await browser.until(`${said}.length === 0`);
    }
    t.deepEqual(browser.errors, []);
    t.deepEqual(browser.requests.filter((url) => !/^(file|data):/.test(url)), [], 'the report is one file');
  } finally {
    await browser.close();
  }
});
