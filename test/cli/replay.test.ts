import { execSync, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test, { type ExecutionContext } from 'ava';

import { evictionPolicyNames } from '#internal/prefix/index.js';

import { refusalOf, runVkv, runVkvJson, vkvInShell } from './run-vkv.js';
import { costly, slow } from '../runner/slow.js';

const MOONCAKE = Array.from({ length: 20 }, (_, at) =>
  JSON.stringify({ timestamp: at * 10, input_length: 100 + 300 * (at % 5), output_length: 1 + (at % 7) })).join('\n');

/** Small pages and little memory, so that a test is fast and still preempts no request. */
const SMALL = ['--layers', '2', '--kv-heads', '2', '--head-dim', '32', '--page-bytes', '64KiB', '--memory-bytes', '256MiB'];

function folderFor(t: ExecutionContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'vkv-replay-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  return folder;
}

function traceIn(t: ExecutionContext, text = MOONCAKE): string {
  const file = path.join(folderFor(t), 'trace.jsonl');
  writeFileSync(file, text);
  return file;
}

test('--json prints every number of the contract', async (t) => {
  const result = await runVkvJson(['replay', traceIn(t), ...SMALL, '--driver', 'host', '--verify', 'full']);
  t.like(result, {
    requests: 20, completedRequests: 20, refusedRequests: 0, skippedLines: 0, promptTokens: 14_000, cachedTokens: 0,
    generatedTokens: 77, preemptions: 0, mismatches: 0, leakedPages: 0, interrupted: false, seed: 1,
    longestTokens: 1_305, staticBytes: 64 * 1_305 * 512, driver: { kind: 'host' }, trace: { format: 'mooncake' },
  });
  for (const name of ['steps', 'foregroundMaps', 'backgroundMaps', 'unmaps', 'peakPhysicalBytes', 'usedBytesAtPeak', 'wallSeconds']) {
    t.is(typeof result[name], 'number', name);
  }
  t.is(result['verifiedTokens'], 14_000 + 77 - 20, 'the last token of an answer is never fed back');
  t.deepEqual(Object.keys(result['stepOverheadUs'] as object), ['p50', 'p99', 'max']);
});

test('the result is a table on stdout, without a progress bar where there is no terminal', async (t) => {
  const { exitCode, stdout, stderr } = await runVkv(['replay', '--generate', '30', ...SMALL, '--driver', 'host']);
  t.is(exitCode, 0, stderr);
  t.is(stderr, '');
  t.regex(stdout, /^Replay of generated workload on host/);
  t.regex(stdout, /Requests +30 completed/);
  t.regex(stdout, /Static reservation .*█/);
  t.regex(stdout, /Done: [\d,]+ tokens read back, all right, no page leaked\.\n$/);
});

test('the same seed gives the same work', async (t) => {
  const run = (seed: string): Promise<Record<string, unknown>> => runVkvJson(['replay', '--generate', '20', '--seed', seed, ...SMALL, '--driver', 'host']);
  const [first, again, other] = [await run('3'), await run('3'), await run('4')];
  const work = ({ promptTokens, generatedTokens, steps, verifiedTokens }: Record<string, unknown>): unknown =>
    [promptTokens, generatedTokens, steps, verifiedTokens];
  t.deepEqual(work(first), work(again));
  t.notDeepEqual(work(first), work(other));
});

costly('starts the command')('the trace comes from stdin with -', (t) => {
  const stdout = execSync(`${vkvInShell} replay - --json --driver host ${SMALL.join(' ')}`, { input: MOONCAKE, encoding: 'utf8' });
  t.like(JSON.parse(stdout), { completedRequests: 20, trace: { name: 'stdin' } });
});

test('a broken line is an error with its number; --skip-invalid counts it', async (t) => {
  const file = traceIn(t, `${MOONCAKE}\n{oops\n`);
  t.like(await refusalOf('replay', file, '--driver', 'host', ...SMALL), {
    exitCode: 1, code: 'KV_TRACE_INVALID', details: { source: file, line: 21, isSkippable: true },
  });
  t.like(await runVkvJson(['replay', file, '--driver', 'host', '--skip-invalid', ...SMALL]), { completedRequests: 20, skippedLines: 1 });
});

test('a request that cannot fit is refused and counted', async (t) => {
  t.like(await runVkvJson(['replay', traceIn(t), '--driver', 'host', ...SMALL, '--max-tokens', '1200']), {
    completedRequests: 16, refusedRequests: 4,
  });
});

test('where no request fits, the reason is printed and the exit code is 1', async (t) => {
  const memory = await runVkv(['replay', traceIn(t), '--driver', 'host', ...SMALL, '--head-dim', '1024', '--memory-bytes', '256KiB']);
  t.is(memory.exitCode, 1);
  t.regex(memory.stdout, /Requests +0 completed · 20 refused: more than all memory, 256 KiB/);
  t.regex(memory.stdout, /Nothing was served: of 20 requests 20 larger than all memory \(.* raise --memory-bytes/);
  t.like(await refusalOf('replay', '--generate', '10', '--memory-bytes', '1KiB', '--driver', 'host'), {
    exitCode: 2, code: 'KV_INVALID_OPTION', details: { owner: 'PagePool', received: 1024 },
  });
  const length = await runVkv(['replay', traceIn(t), '--driver', 'host', ...SMALL, '--max-tokens', '50']);
  t.is(length.exitCode, 1);
  t.regex(length.stdout, /Nothing was served: of 20 requests 20 longer than 50 tokens \(raise --max-tokens\)/);
});

test('the error of a line that cannot be skipped does not suggest to skip it', async (t) => {
  const file = traceIn(t, 'TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n');
  const { code, details, message } = await refusalOf('replay', file, '--driver', 'host', ...SMALL, '--skip-invalid');
  t.like({ code, details }, { code: 'KV_TRACE_INVALID', details: { line: 1, isSkippable: false } });
  t.regex(message, /GeneratedTokens/);
  t.notRegex(message, /skip-invalid/);
});

test('control characters of a trace never reach the terminal', async (t) => {
  const evil = '\u001b]0;owned\u0007\u009b31m\u202e';
  const folder = folderFor(t);
  const file = path.join(folder, `trace${evil}.jsonl`);
  writeFileSync(file, `{"timestamp":0,"input_length":"${evil}","output_length":1}\n`);
  const good = path.join(folder, `good${evil}.jsonl`);
  writeFileSync(good, MOONCAKE);
  const config = path.join(folder, 'config.json');
  writeFileSync(config, JSON.stringify({ _name_or_path: evil, num_hidden_layers: 2, num_attention_heads: 2, hidden_size: 64 }));
  const host = ['--driver', 'host', ...SMALL];
  const calls = [
    ['replay', file, ...host], ['replay', file, ...host, '--json'], ['replay', good, ...host], ['replay', good, ...host, '--json'],
    ['replay', `no${evil}.csv`], ['replay', '--generate', '--layout', evil], ['plan', '--config', config], ['plan', '--config', config, '--json'],
    ['plan', '--config', `no${evil}`], [evil], [`--${evil}`],
  ];
  const outputs = [];
  for (const words of calls) outputs.push(await runVkv(words, { VKV_DEBUG: '1' }));
  outputs.forEach(({ stdout, stderr }, index) => {
    t.true(stdout.length + stderr.length > 0);
    // eslint-disable-next-line no-control-regex
    t.notRegex(stdout + stderr, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202e]/, `command ${index}`);
  });
  t.is((JSON.parse(outputs[3]!.stdout) as { trace: { name: string } }).trace.name, good, 'JSON says it as it is');
});

test('--limit ends the replay early, and --arrivals trace keeps the times of the trace', async (t) => {
  const result = await runVkvJson(['replay', traceIn(t), '--limit', '7', '--arrivals', 'trace', '--step-ms', '1', '--driver', 'host', ...SMALL]);
  t.like(result, { requests: 7, completedRequests: 7 });
});

/** Prompts of 1,000 tokens, of which every second begins like the others. */
const ALIKE = Array.from({ length: 12 }, (_, at) =>
  JSON.stringify({ timestamp: at, input_length: 1000, output_length: 3, hash_ids: [at % 2 === 0 ? 0 : 100 + at, 200 + at] })).join('\n');

test('--prefix-cache computes once what prompts have in common; --prompt-only leaves their answers out', async (t) => {
  const file = traceIn(t, ALIKE);
  const flags = [file, ...SMALL, '--driver', 'host', '--verify', 'full', '--max-batch', '1'];
  t.like(await runVkvJson(['replay', ...flags]), { cachedTokens: 0, hitRate: 0, cache: { prefixCache: 'off', promptOnly: false } });
  const result = await runVkvJson(['replay', ...flags, '--prefix-cache']);
  t.like(result, {
    promptTokens: 12_000, cachedTokens: 5 * 512, generatedTokens: 36, mismatches: 0, leakedPages: 0,
    hitRate: 0.213333, cache: { prefixCache: { policy: 'adaptive', poolRows: null } },
  });
  t.is((['adoptedTokens', 'aliasedTokens', 'copiedTokens'] as const).reduce((sum, name) => sum + Number(result[name]), 0), 5 * 512);
  t.like(await runVkvJson(['replay', ...flags, '--prefix-cache', '--prompt-only']), {
    cachedTokens: 5 * 512, generatedTokens: 0, verifiedTokens: 12_000, cache: { promptOnly: true },
  });
  const { stdout } = await runVkv(['replay', ...flags, '--prefix-cache']);
  t.regex(stdout, /12,000 prompt · 2,560 from the cache · 36 generated/);
  t.regex(stdout, /Prefix cache +21\.3 % of the prompt tokens · .*adaptive, as many rows as memory has/);
});

test('windows of a config are replayed as windows, and with a prefix cache as if they kept all, which is said', async (t) => {
  const folder = folderFor(t);
  writeFileSync(path.join(folder, 'config.json'), JSON.stringify({
    model_type: 'mistral', num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 2, head_dim: 32, hidden_size: 64,
    max_position_embeddings: 4_096, sliding_window: 64, torch_dtype: 'float16',
  }));
  const flags = [
    traceIn(t), '--config', folder, '--page-bytes', '64KiB', '--memory-bytes', '256MiB', '--driver', 'host', '--verify', 'full',
    '--max-batch', '1', '--prefill-tokens-per-step', '128',
  ];
  const sliding = await runVkvJson(['replay', ...flags]);
  const keeping = await runVkvJson(['replay', ...flags, '--prefix-cache']);
  for (const result of [sliding, keeping]) t.like(result, { mismatches: 0, leakedPages: 0 });
  const [fewest, most] = [sliding, keeping].map(({ peakPhysicalBytes }) => Number(peakPhysicalBytes) / 65_536);
  t.true(fewest! <= 4 && most! >= 10, `${fewest} of ${most} pages`);
  const { stderr } = await runVkv(['replay', ...flags, '--prefix-cache']);
  t.regex(stderr, /kept all tokens/);
});

test('--policy and --pool-rows stand for --prefix-cache', async (t) => {
  const flags = ['replay', traceIn(t, ALIKE), ...SMALL, '--driver', 'host', '--max-batch', '1'];
  for (const policy of evictionPolicyNames.slice(1)) {
    t.like(await runVkvJson([...flags, '--policy', policy]), { cachedTokens: 5 * 512, cache: { prefixCache: { policy, poolRows: null } } });
  }
  t.like(await runVkvJson([...flags, '--pool-rows', '0']), { cachedTokens: 0, cache: { prefixCache: { policy: 'adaptive', poolRows: 0 } } });
});

test('a mistake in the flags is reported before anything runs, with exit code 2', async (t) => {
  const refused = async (words: readonly string[], expected: object): Promise<void> => {
    t.like(await refusalOf('replay', ...words), { exitCode: 2, code: 'KV_INVALID_OPTION', ...expected }, words.join(' '));
  };
  await refused([], { details: { option: 'file', reason: 'type' } });
  await refused(['a.csv', '--generate'], { details: { option: 'file', received: 'a.csv' } });
  for (const [option, received] of [['--step-ms', 5], ['--format', 'azure'], ['--skip-invalid', true]] as const) {
    await refused(['--generate', option, ...received === true ? [] : [String(received)]], { details: { option, received } });
  }
  for (const [option, value, says = option] of [
    ['--verify', 'some'], ['--report', 'out.png', '.svg'], ['--report', 'no/such/folder/out.svg', 'folder'],
    ['--step-ms', '0'], ['--policy', 'fifo', evictionPolicyNames.join(', ')], ['--pool-rows', '-1'], ['--page-bytes', '5000'],
  ] as const) {
    const { exitCode, code, message } = await refusalOf('replay', '--generate', option, value);
    t.deepEqual([exitCode, code], [2, 'KV_INVALID_OPTION'], `${option} ${value}`);
    t.true(message.includes(says), message);
  }
});

slow('loads Vega and draws')('--report writes one self-contained file', async (t) => {
  const folder = folderFor(t);
  for (const name of ['report.html', 'report.svg']) {
    const file = path.join(folder, name);
    const { exitCode, stderr } = await runVkv(['replay', '--generate', '30', ...SMALL, '--driver', 'host', '--report', file]);
    t.is(exitCode, 0, stderr);
    const text = readFileSync(file, 'utf8');
    t.regex(text, /<svg[^>]*role="img"/);
    t.regex(text, /static reservation/);
    t.notRegex(text, /(?:src|href)="http/, 'nothing is fetched');
  }
});

/** Feeds the command through its stdin until it has certainly begun, then presses Ctrl-C and leaves stdin open. */
async function interrupt(whileThereIsMore: boolean): Promise<{ exitCode: number | null; stdout: string }> {
  const child = spawn('sh', ['-c', `exec ${vkvInShell} replay - --json --driver host ${SMALL.join(' ')}`], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  child.stdin.on('error', () => undefined); // it may close its end first
  let stdout = '';
  child.stdout.on('data', (chunk: Buffer) => { stdout += chunk; });
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
  const lines = Buffer.from(`${MOONCAKE}\n`.repeat(1_000)); // a megabyte, more than any pipe holds: written means read
  await new Promise<void>((resolve) => child.stdin.write(lines, () => resolve()));
  if (whileThereIsMore) for (let times = 0; times < 50; ++times) child.stdin.write(lines);
  child.kill('SIGINT');
  return { exitCode: await ended, stdout };
}

slow('starts the command')('Ctrl-C ends it cleanly with the numbers so far, and exit code 130', async (t) => {
  const { exitCode, stdout } = await interrupt(true);
  t.is(exitCode, 130);
  const result = JSON.parse(stdout) as Record<string, number>;
  t.like(result, { interrupted: true, mismatches: 0, leakedPages: 0 } as object);
  t.true(result['completedRequests']! > 1_000 && result['completedRequests']! < 1_000_000);
});

slow('starts the command')('Ctrl-C while stdin is silent ends it too', async (t) => {
  const { exitCode, stdout } = await interrupt(false);
  t.is(exitCode, 130);
  t.like(JSON.parse(stdout), { interrupted: true, leakedPages: 0 });
});
