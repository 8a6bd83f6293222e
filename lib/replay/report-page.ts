// The HTML page of a report: headline, memory bars, chart and facts, in one self-contained file with no script and no
// network. Text comes from the summary; this only lays it out.

import path = require('node:path');

import { formatBytes, formatNumber, printable } from '../base/format.js';
import { isAllRefused, isSound, type ReplayResult } from './result.js';
import { factsOf, memoryBarsOf, verdictOf, type Fact, type MemoryBar } from './summary.js';

/** The charts of a page, as trusted SVG; `narrow` is the one of memory for a phone. */
export interface ReportCharts {
  readonly memory: string;
  readonly narrow: string;
  readonly tiers: { readonly hits: string; readonly firstToken: string } | undefined;
}

/** Everything but the charts is escaped. */
export function reportPage(result: ReplayResult, { memory, narrow, tiers }: ReportCharts): string {
  const bars = memoryBarsOf(result);
  const most = Math.max(...bars.map(({ bytes }) => bytes), 1);
  const tokens = result.promptTokens + result.generatedTokens;
  const times = result.staticBytes / Math.max(result.peakPhysicalBytes, 1);
  const less = formatNumber(times, times < 10 ? 1 : 0);
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Replay of ${escaped(path.basename(result.trace.name))} · virtual-kv</title>
<style>${stylesheet}</style>
</head>
<body>
<main>
<p class="kicker">virtual-kv replay · ${escaped(path.basename(result.trace.name))}</p>
<h1>${formatBytes(result.peakPhysicalBytes)} of memory did the work of ${formatBytes(result.staticBytes)}</h1>
<p class="lead">${formatNumber(result.completedRequests)} requests, ${formatNumber(tokens)} tokens, a KV cache that is
contiguous to the kernels and grows page by page: ${less} × less than a static reservation.</p>
<p class="verdict ${isSound(result) && !isAllRefused(result) ? 'good' : 'bad'}">${escaped(verdictOf(result))}</p>
<section aria-label="Memory at the peak">
<h2>Memory at the peak</h2>
<dl class="bars">
${bars.map((bar, index) => barOf(bar, index, most)).join('\n')}
</dl>
</section>
<section aria-label="Memory over time">
<h2>Memory over time</h2>
<figure class="wide">${memory}</figure>
<figure class="narrow">${narrow}</figure>
<p class="hint">Point at the chart, or tap it, for the numbers of a moment.</p>
</section>
${tiers === undefined ? '' : `<section aria-label="Where prompts came from">
<h2>Where prompts came from</h2>
<figure>${tiers.hits}</figure>
</section>
<section aria-label="Time to the first token">
<h2>Time to the first token, by where most of the prompt came from</h2>
<figure>${tiers.firstToken}</figure>
</section>
`}<section aria-label="Numbers">
<h2>Numbers</h2>
<table>
${factsOf(result).map(rowOf).join('\n')}
</table>
</section>
</main>
</body>
</html>
`;
}

function barOf({ name, bytes, note }: MemoryBar, index: number, most: number): string {
  const width = Math.max(0.2, (100 * bytes) / most).toFixed(2);
  return `<dt>${escaped(name)}<small>${escaped(note)}</small></dt>
<dd><span class="bar bar-${index}" style="width:${width}%"></span><b>${formatBytes(bytes)}</b></dd>`;
}

function rowOf({ name, value }: Fact): string {
  return `<tr><th scope="row">${escaped(name)}</th><td>${escaped(value)}</td></tr>`;
}

function escaped(text: string): string {
  const entities: Readonly<Record<string, string>> =
    { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
  return printable(text).replace(/[&<>"']/g, (character) => entities[character]!);
}

const stylesheet = `
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2329; --faint: #656d77; --line: #e4e6ea;
  --fixed: #b35901; --mapped: #4a8fe1; --paged: #9aa4af; --used: #1c4f94; --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --faint: #9aa4af; --line: #2d333b;
  --fixed: #e0904a; --mapped: #5b9cf0; --paged: #6e7781; --used: #8fbdf7; --good: #3fb950; --bad: #f85149; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 48px 24px 72px; }
.kicker { margin: 0; color: var(--faint); font-size: 14px; }
h1 { margin: 6px 0 10px; font-size: clamp(26px, 4.4vw, 38px); line-height: 1.15; letter-spacing: -0.02em;
  text-wrap: balance; }
h2 { margin: 44px 0 12px; font-size: 17px; }
.lead { margin: 0; max-width: 68ch; color: var(--faint); }
.verdict { margin: 16px 0 0; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
.bars { display: grid; grid-template-columns: max-content 1fr; gap: 10px 20px; margin: 0; align-items: center; }
dt small { display: block; color: var(--faint); font-size: 13px; }
dd { margin: 0; display: flex; align-items: center; gap: 10px; padding-right: 84px; }
dd b { margin-right: -84px; white-space: nowrap; font-variant-numeric: tabular-nums; }
.bar { height: 22px; min-width: 2px; border-radius: 3px; flex: none; }
.bar-0 { background: var(--fixed); } .bar-1 { background: var(--mapped); }
.bar-2 { background: var(--paged); } .bar-3 { background: var(--used); }
figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; }
.narrow { display: none; }
.hint { margin: 6px 0 0; color: var(--faint); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 0; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
th { width: 200px; font-weight: normal; color: var(--faint); }
@media (max-width: 620px) { main { padding: 24px 16px 48px; } .wide { display: none; } .narrow { display: block; } td { overflow-wrap: anywhere; }
  .bars { grid-template-columns: 1fr; gap: 4px; } dd { margin-bottom: 10px; } th { width: 104px; padding-right: 8px; } }
`;
