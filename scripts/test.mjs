// The tests: installs and builds what is missing, runs AVA, and ends with a line `N passed, N failed` for machines to read.
//
//   npm test                 what a change needs: quick tests, random worlds at a tenth of their length, samples of sweeps and tables
//   npm run test:all         everything at full length
//   npm test -- PLACE…       everything of these files or folders: `npm test -- build-test/cache build-test/host/limits.test.js`
//
// Words that begin with a dash go to AVA (`--match='*fence*'`). The environment says the rest: VKV_TEST_TIER = quick | all | release,
// VKV_TEST_SCALE (length of random worlds; 0.1 in `quick`, else 1), VKV_TEST_SAMPLE (which part of sweeps `quick` takes), VKV_TEST_SEED
// (test/runner/tier.ts), VKV_TEST_PACKAGE=1 (the tests of the packed package alone). Exit code 1 where a test failed, or costs more
// than it declares (scripts/tests/costs.mjs).

import { spawn } from 'node:child_process';
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { stripVTControlCharacters } from 'node:util';

import { prepareExamplePackages, preparePackages, prepareTests, root } from './prepare.mjs';
import { cpuSeconds, judgeCosts, machineSpeed } from './tests/costs.mjs';
import { selectTests } from './tests/selection.mjs';

const words = process.argv.slice(2);
const places = words.filter((word) => !word.startsWith('-'));
const flags = words.filter((word) => word.startsWith('-') && word !== '--all');
const tier = process.env.VKV_TEST_TIER ?? (words.includes('--all') || places.length > 0 || process.env.VKV_TEST_PACKAGE ? 'all' : 'quick');
const sample = process.env.VKV_TEST_SAMPLE ?? String(Date.now() % 1_000);

prepareTests();
// 113 MB to download, so only when its tests are named; otherwise they are skipped, by name, where it is not installed.
if (places.some((place) => place.includes('onnxruntime'))) prepareExamplePackages('onnxruntime');
if (places.some((place) => place.includes('transformers'))) prepareExamplePackages('transformers');
if (places.some((place) => place.includes('real-tokenizers'))) preparePackages(path.join('test', 'llama', 'tokenizers'));

/** Taken while tests run: two hyperthreads of one core are slower than one. */
const speeds = [machineSpeed()];
const speedometer = setInterval(() => { speeds.push(machineSpeed()); }, 10_000);
/** Of the last run, one JSON object a test. */
const costs = path.join(root, 'node_modules', '.cache', 'virtual-kv', 'test-costs.jsonl');
rmSync(costs, { force: true });
const files = process.env.VKV_TEST_PACKAGE ? [] : chosenTests();
if (tier === 'quick') console.log(`virtual-kv: VKV_TEST_SAMPLE=${sample}`);

/** For files of tests; also of those that are killed, as some are. Others than this user may use it too. */
const temporary = mkdtempSync(path.join(tmpdir(), 'vkv-test-'));
chmodSync(temporary, 0o1777);

// A module that AVA's own process loads first (scripts/test-arm64.mjs).
const preload = process.env.VKV_TEST_REQUIRE === undefined ? [] : ['--require', process.env.VKV_TEST_REQUIRE];
const child = spawn(process.execPath, [...preload, path.join(root, 'node_modules', 'ava', 'entrypoints', 'cli.mjs'), ...flags], {
  cwd: root,
  stdio: ['inherit', 'pipe', 'inherit'],
  env: {
    ...(process.stdout.isTTY ? { FORCE_COLOR: '1' } : {}),
    ...(tier === 'quick' ? { VKV_TEST_SCALE: '0.1', VKV_TEST_SAMPLE: sample } : {}),
    ...process.env,
    VKV_TEST_TIER: tier, VKV_TEST_COSTS: costs, VKV_TEST_FILES: JSON.stringify(files), TMPDIR: temporary,
  },
});

// AVA gets it too, and says which tests are pending.
process.on('SIGINT', () => { /* until AVA has ended */ });

let output = '';
child.stdout.setEncoding('utf8').on('data', (text) => {
  process.stdout.write(text.replace(/^ +at async .*\/ava\/lib\/runner\.js.*\n/gm, '')); // a line for each test before
  output += text;
});
child.on('close', (code) => {
  clearInterval(speedometer);
  rmSync(temporary, { recursive: true, force: true, maxRetries: 3 });
  const { passed, failed, skipped } = readSummary(output);
  // Other processors, other releases of Node.js, sanitizers and single tests have no budget.
  const isWhole = places.length === 0 && flags.length === 0 && !process.env.VKV_TEST_PACKAGE && process.version.startsWith('v20.');
  const judged = judgeCosts(costs, { tier, speed: speeds.toSorted((a, b) => a - b)[Math.floor(speeds.length / 2)], hasBudget: isWhole && !process.env.VKV_TEST_PRELOAD && !preload.length });
  for (const line of [...judged.lines, ...describeFailures(output)]) console.log(line);
  console.log(`virtual-kv: ${cpuSeconds().toFixed(0)} CPU-s in ${Math.round(performance.now() / 1e3)} s`);
  const exitCode = code === 0 ? Math.min(1, judged.excesses) : code ?? 1;
  // A crash, a timeout or no test at all is in no count of AVA's.
  const atLeast = Math.max(failed + judged.excesses, Math.min(1, exitCode));
  console.log(`${passed} passed, ${atLeast} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`);
  process.exitCode = exitCode;
});

/** Ends with a line where there are none. */
function chosenTests() {
  try {
    return selectTests(places, tier);
  } catch (error) {
    console.error(`virtual-kv: ${error.message}`);
    process.exit(2);
  }
}

/** What failed once more, behind the costs: whoever reads a log's last lines alone learns which tests, and how the first. */
function describeFailures(text) {
  const lines = stripVTControlCharacters(text).split('\n');
  /** The first pending test of a process is the one that hangs. */
  const isFirstPending = (at) => /^ *\d+ tests were pending in /.test(lines[at - 2]);
  const failed = lines.filter((line, at) => /^ *[✘✖×] /.test(line) || isFirstPending(at));
  const first = lines.slice(lines.findLastIndex((line) => line.trim() === '─') + 1).filter((line) => line.trim() !== '');
  return failed.length === 0 ? [] : ['Failed:', ...failed, ...first.slice(0, 25)];
}

/** When a test failed, AVA's closing lines leave out the passed ones: these are counted where they are listed. */
function readSummary(text) {
  const plain = stripVTControlCharacters(text);
  const end = plain.slice(Math.max(0, plain.lastIndexOf('\n  ─')));
  const sum = (pattern) => [...end.matchAll(pattern)].reduce((total, [, count]) => total + Number(count), 0);
  return {
    passed: plain.match(/^ *[✔√] /gm)?.length ?? 0,
    failed: sum(/^ *(\d+) (?:tests?|hooks?) (?:failed|remained pending)/gm)
      + sum(/^ *(\d+) (?:uncaught exception|unhandled rejection)/gm),
    skipped: sum(/^ *(\d+) tests? skipped/gm),
  };
}
