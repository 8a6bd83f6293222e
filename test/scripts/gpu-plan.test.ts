// The plan of gpu-check: what is run when something before it failed, crashed or hung, and that all of it fits into nine minutes.

import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { pathToFileURL } from 'node:url';

import test from 'ava';

import { contractGroups } from '../contract/contract-groups.js';
import { kernelShapes } from '../helpers/kernel-shapes.js';
import { slow } from '../runner/slow.js';
import { SteppedClock } from '../serving/stepped-clock.js';

type Command = readonly string[];
interface Stage {
  readonly seconds: number;
  readonly needs?: string;
  readonly gives?: string;
  readonly sections: readonly { readonly title: string; readonly dtype?: string }[];
}
interface Run { readonly title: string; readonly seconds: number }
interface Ended { readonly title: string; readonly verdict: string }

/** What checks kernels of a type and shape; the last to be started is the cheapest. */
const last = 'float32, head dim 13, 3 query heads to a KV head';

const folder = path.resolve(__dirname, '..', '..', 'scripts', 'gpu');
const load = (name: string): Promise<unknown> => import(pathToFileURL(path.join(folder, name)).href);

/**
 * Runs the plan with programs that only print their command line, but for those that `faults` names by a word of it. No time passes but
 * that of the section `hanging`, when it is the last that runs.
 */
async function runPlan(
  faults: Readonly<Record<string, string>> = {}, { atOnce = 8, hanging = '' }: { atOnce?: number; hanging?: string } = {},
): Promise<{ verdicts: Map<string, string>; passed: boolean; order: readonly string[]; saved: readonly Ended[] }> {
  const { makePlan } = await load('plan.mjs') as { makePlan(what: object): readonly Stage[] };
  const { runPlan: run } = await load('run-plan.mjs') as {
    runPlan(plan: readonly Stage[], sections: object, options: object): Promise<boolean>;
  };
  const { Sections } = await load('sections.mjs') as { Sections: new (options: object) => { run(section: Run): Promise<unknown> } };
  const { addResults, readResults } = await load('results.mjs') as {
    addResults(file: string, parts: object): void; readResults(file: string): { sections: readonly Ended[] };
  };
  const place = mkdtempSync(path.join(tmpdir(), 'virtual-kv-'));
  const program = (...args: readonly string[]): Command => {
    const line = args.join(' ');
    const fault = Object.entries(faults).find(([word]) => line.includes(word))?.[1] ?? '';
    return ['/bin/sh', '-c', `echo '${line}'; ${fault}`];
  };
  const plan = makePlan({
    programs: { vkv: program, script: program, measure: program, ava: program }, results: 'r.json', page: 'r.md', simulated: false,
    shapes: kernelShapes, groups: contractGroups,
  });
  const ended: Ended[] = [];
  const results = path.join(place, 'results.json');
  const clock = new SteppedClock();
  const running = new Map<string, Run>();
  const passTime = (): void => {
    const only = running.get(hanging);
    if (only === undefined || running.size > 1) return;
    running.delete(hanging); // once
    clock.advance(only.seconds * 1e3);
  };
  class WatchedSections extends Sections {
    override async run(section: Run): Promise<unknown> {
      running.set(section.title, section);
      const outcome = super.run(section);
      passTime();
      return outcome.finally(() => {
        running.delete(section.title);
        setImmediate(passTime); // others of the stage begin first
      });
    }
  }
  const sections = new WatchedSections({
    seconds: 3600, clock: clock.options, log: path.join(place, 'log'), print: () => {}, onEnd: (section: Ended) => {
      ended.push(section);
      addResults(results, { sections: ended });
    },
  });
  const passed = await run(plan, sections, { atOnce });
  const verdicts = new Map(ended.map(({ title, verdict }) => [title, verdict]));
  const saved = readResults(results).sections;
  return { verdicts, passed, order: ended.map(({ title }) => title), saved };
}

const notPassed = (verdicts: ReadonlyMap<string, string>): readonly string[] =>
  [...verdicts].filter(([, verdict]) => verdict !== 'passed').map(([title]) => title);

test('the limits of all stages fit into nine minutes together', async (t) => {
  const { makePlan, planSeconds, before } = await load('plan.mjs') as {
    makePlan(what: object): readonly Stage[]; planSeconds: number; before: Readonly<Record<string, number>>;
  };
  const program = (...args: readonly string[]): Command => args;
  const plan = makePlan({
    programs: { vkv: program, script: program, measure: program, ava: program }, results: '', page: '', simulated: false,
    shapes: kernelShapes, groups: contractGroups,
  });
  t.is(plan.reduce((sum, { seconds }) => sum + seconds, 0), planSeconds);
  const beforeSeconds = Object.values(before).reduce((sum, seconds) => sum + seconds, 0);
  t.true(beforeSeconds + planSeconds <= 530, 'and the bundle is unpacked in the ten seconds that are left');
  const isCheck = ({ title, dtype }: Stage['sections'][number]): boolean => / on cuda/.test(title) || dtype !== undefined;
  t.true(plan.every(({ sections }) => sections.length === 1 || sections.every(isCheck)), 'what is timed has the GPU to itself');
});

slow('starts the checks of a GPU')('sections without kernels come directly after the GPU is opened, and all pass where nothing fails', async (t) => {
  const { verdicts, passed, order, saved } = await runPlan();
  t.true(passed);
  t.deepEqual(notPassed(verdicts), []);
  t.deepEqual(order.slice(0, 5), [
    'vkv info', 'the GPU is opened', 'the kernels are loaded', 'calls of the driver, growth beside work', 'questions to the driver',
  ]);
  t.deepEqual(saved.map(({ title }) => title), order, 'the file of results has every section');
});

test('kernels that cannot be loaded cost the sections that need them, and no other', async (t) => {
  const { verdicts, passed } = await runPlan({ 'load.mjs kernels': 'exit 1' });
  t.false(passed);
  t.is(verdicts.get('the kernels are loaded'), 'FAILED (exit code 1)');
  const skipped = [...verdicts].filter(([, verdict]) => verdict.startsWith('skipped'));
  const titles = skipped.map(([title]) => title);
  t.is(titles.filter((title) => title.includes(', head dim ')).length, 3 * kernelShapes.length);
  t.deepEqual(titles.filter((title) => !title.includes(', head dim ')), [
    'dense kernels on cuda', 'attention of onnxruntime on cuda', 'how fast the kernels are', 'contiguous slots against a block table', 'decoding beside copies of tiers', 'reference engine and matrix products',
  ]);
  t.true(skipped.every(([, verdict]) => verdict === 'skipped (without kernels)'));
  for (const title of [
    'calls of the driver, growth beside work', 'questions to the driver', 'contract on cuda: mappings', 'side rows from the device', 'copies of tiers',
    'replay on cuda, every byte checked', 'report',
  ]) {
    t.is(verdicts.get(title), 'passed', title);
  }
});

test('without a GPU only the report is left', async (t) => {
  const { verdicts } = await runPlan({ 'load.mjs gpu': 'exit 1' });
  t.deepEqual([...verdicts].filter(([, verdict]) => verdict === 'passed').map(([title]) => title), ['vkv info', 'report']);
});

slow('starts the checks of a GPU')('a section that crashes costs no other', async (t) => {
  const { verdicts } = await runPlan({ 'calls growth': 'kill -SEGV $$' });
  t.deepEqual(notPassed(verdicts), ['calls of the driver, growth beside work']);
  t.is(verdicts.get('calls of the driver, growth beside work'), 'FAILED (SIGSEGV)');
});

for (const atOnce of [8, 1]) {
  slow('starts the checks of a GPU')(`a section that hangs is ended with its stage, ${atOnce} at a time, and its type is timed all the same`, async (t) => {
    const { verdicts, order } = await runPlan({ '--match float32, head dim 13,': 'sleep 600' }, { atOnce, hanging: last });
    t.deepEqual(notPassed(verdicts), [last]);
    t.is(verdicts.get(last), 'FAILED (it ran out of time)');
    t.is(order[order.indexOf('how fast the kernels are') - 1], last, 'what costs least is started last');
  });
}

test('a section for which its stage has no time left says nothing of its type', async (t) => {
  const { verdicts } = await runPlan({ 'dense-cuda': 'sleep 600' }, { atOnce: 1, hanging: 'dense kernels on cuda' });
  t.is(verdicts.get('dense kernels on cuda'), 'FAILED (it ran out of time)');
  t.is(verdicts.get(last), 'FAILED (there was no time left)');
  t.is(verdicts.get('contiguous slots against a block table'), 'passed');
});

slow('starts the checks of a GPU')('a type with wrong kernels is not timed', async (t) => {
  const { verdicts } = await runPlan({ '--match float16, head dim 64,': 'exit 1', '--without float16 kernels': 'exit 3' });
  t.is(verdicts.get('contiguous slots against a block table'), 'skipped (float16 is wrong)');
  t.is(verdicts.get('how fast the kernels are'), 'FAILED (exit code 3)', 'it was told to leave that type out');
});

test('as many sections run at the same time as there are processors, and as the GPU has memory for', async (t) => {
  const { sectionsAtOnce } = await load('run-plan.mjs') as {
    sectionsAtOnce(machine: { processors: number; memoryMiB?: number; canShare: boolean }): number;
  };
  t.is(sectionsAtOnce({ processors: 16, memoryMiB: 81_559, canShare: true }), 16);
  t.is(sectionsAtOnce({ processors: 16, memoryMiB: 8192, canShare: true }), 5);
  t.is(sectionsAtOnce({ processors: 16, memoryMiB: 1024, canShare: true }), 1);
  t.is(sectionsAtOnce({ processors: 16, canShare: true }), 16);
  t.is(sectionsAtOnce({ processors: 16, memoryMiB: 81_559, canShare: false }), 1);
});
