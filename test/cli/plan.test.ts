import { readFileSync, writeFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { layoutKinds } from '#internal/layout/layout.js';
import { folderOf } from '../helpers/temporary-folder.js';
import { hybridConfigs } from './hybrid-configs.js';
import { runVkv, runVkvJson, spawnVkv } from './run-vkv.js';
import { slow } from '../runner/slow.js';

const configs = path.resolve(__dirname, '..', '..', 'test', 'fixtures', 'configs');
const yi34b = ['--layers', '60', '--kv-heads', '8', '--head-dim', '128', '--dtype', 'fp16'];
const yi34bTp2 = [...yi34b, '--tensor-parallel', '2', '--slots', '500', '--max-tokens', '204800'];
const plan = (...parameters: string[]): Promise<Record<string, unknown>> => runVkvJson(['plan', ...parameters]);

test('the plan of Yi-34B TP-2 goes from one token to 12.6 TB of addresses', async (t) => {
  t.like(await plan(...yi34bTp2), {
    layout: 'per-layer', pageBytes: 2_097_152, slots: 500, maxTokens: 204_800, tokenBytes: 1024,
    slotBytes: 209_715_200, slotStrideBytes: 209_715_200, reservationBytes: 104_857_600_000, reservations: 120,
    virtualBytes: 12_582_912_000_000, tokensPerRow: 2048, pagesPerRow: 120, rowBytes: 251_658_240,
  });
  t.like(await plan(...yi34bTp2, '--max-tokens', '200000'), {
    slotBytes: 204_800_000, slotStrideBytes: 205_520_896,
    reservationBytes: 102_760_448_000, virtualBytes: 12_331_253_760_000,
  });
});

test('--tokens adds rows, pages and unused bytes of one sequence', async (t) => {
  const ask = (...parameters: string[]): Promise<Record<string, unknown>> => plan(...yi34bTp2, '--tokens', '33000', ...parameters);
  t.like(await ask(), { rows: 17, pages: 2040, physicalBytes: 4_278_190_080, unusedBytes: 223_150_080 });
  t.like(await ask('--page-bytes', '64KiB'), { pages: 61_920, unusedBytes: 2_949_120 });
  t.like(await ask('--layout', 'sliced'), { rows: 967, pages: 1934, unusedBytes: 851_968, tokenBytes: 1024 });
  t.like(await plan(...yi34bTp2, '--tokens', '0'), { rows: 0, pages: 0, physicalBytes: 0, unusedBytes: 0 });
});

test('addresses beyond those of a process are not called free', async (t) => {
  const many = ['--layers', '80', '--kv-heads', '8', '--head-dim', '128', '--max-tokens', '131072', '--slots', '4096'];
  t.like(await plan(...many), { virtualBytes: 160 * 2 ** 40, isReservable: false });
  t.regex((await runVkv(['plan', ...many])).stdout, /= 160 TiB, more than the 64 TiB that a process can usually reserve; lower --slots or --max-tokens/);
  t.regex((await runVkv(['plan', ...many, '--compare'])).stdout, /addresses: some are more than the 64 TiB/);
  t.like(await plan(...many, '--slots', '1024'), { virtualBytes: 40 * 2 ** 40, isReservable: true });
});

test('layer sets have a table: what each keeps, its rows, its layout and why', async (t) => {
  const { stdout } = await runVkv(['plan', '--config', path.join(configs, 'gemma3.json'), '--tokens', '32768', '--memory-bytes', '40GiB']);
  t.regex(stdout, /^gemma3\n34 layers \(29 window and 5 full\), 4 KV heads × 256, bfloat16\n/);
  t.regex(stdout, /\nset +layers +keeps +one token +layout +tokens per row +most rows +most of a sequence\n/);
  t.regex(stdout, /\nfull +5 +all tokens +20 KiB +per-layer +1,024 +128 +2\.5 GiB\n/);
  t.regex(stdout, /\nwindow +29 +1,024 tokens +116 KiB +sliced +35\.31 +30 +120 MiB\n/);
  t.regex(stdout, /\nwindow: sliced, the first layout that takes at most 1\.5 times the bytes of its tokens: 120 MiB for 116 MiB\n/);
  t.regex(stdout, /\n32,768 tokens +32 rows = 380 pages = 760 MiB, of which 4 MiB \(0\.53 %\) not yet used\n/);
  t.regex(stdout, /\none row \(full\) +10 pages = 20 MiB for 1,024 tokens; a slot has up to 128\na row on a GPU \(full\) +10 cuMemMap and 10 cuMemSetAccess/);
  t.regex(stdout, /\naddresses +12 reservations, together 4\.3 TiB, which/);
  t.regex(stdout, /: 53 sequences of 32,768 tokens/);
});

test('sets are in the JSON, for so many new tokens in a pass', async (t) => {
  const gemma = ['--config', path.join(configs, 'gemma3.json'), '--page-bytes', '64KiB'];
  const sets = async (...parameters: string[]): Promise<unknown[]> => (await plan(...gemma, ...parameters))['sets'] as unknown[];
  t.like((await sets())[1], { kind: 'window', layers: 29, keptTokens: 1024, layout: 'per-layer', layoutReason: 'small', mostRows: 33, tokenBytes: 29 * 4096, keptBytes: 1024 * 29 * 4096 });
  t.like((await sets('--pass-tokens', '2048'))[1], { mostRows: 97, mostBytes: 97 * 58 * 65_536 });
  t.like(await plan(...gemma, '--pass-tokens', '2048', '--tokens', '100'), { rows: 4, pages: 4 * 10 + 4 * 58 });
});

test('the table says of each window why it has its layout', async (t) => {
  const window = { num_hidden_layers: 2, num_attention_heads: 8, head_dim: 64, sliding_window: 128, max_position_embeddings: 4096, sliding_window_pattern: 2 };
  const folder = folderOf(t);
  const lineOf = async (name: string, config: object, ...parameters: string[]): Promise<string> => {
    writeFileSync(path.join(folder, `${name}.json`), JSON.stringify(config));
    const { stdout } = await runVkv(['plan', '--config', path.join(folder, `${name}.json`), ...parameters]);
    return /^window: .*$/m.exec(stdout)?.[0] ?? stdout;
  };
  t.is(await lineOf('smallest', window), 'window: fused, as every layout takes more than 1.5 times the bytes of its tokens: 4 MiB for 256 KiB');
  t.is(await lineOf('unequal', { ...window, v_head_dim: 32 }, '--page-bytes', '4KiB'),
    'window: per-layer, the first layout that takes at most 1.5 times the bytes of its tokens: 204 KiB for 192 KiB');
  t.is(await lineOf('small', window, '--page-bytes', '4KiB', '--pass-tokens', '4'),
    'window: per-layer, the first layout that takes at most 1.5 times the bytes of its tokens: 272 KiB for 256 KiB, with 4 new tokens in a pass');
});

test('docs/plan.md shows the plan of Gemma 3 27B as it is', async (t) => {
  const shown = /```\n(gemma-3-27b\n[^]*?)```/.exec(readFileSync(path.join(configs, '..', '..', '..', 'docs', 'plan.md'), 'utf8'))![1]!;
  const file = path.join(folderOf(t), 'gemma-3-27b.json');
  writeFileSync(file, JSON.stringify(hybridConfigs['gemma3-27b']));
  t.is((await runVkv(['plan', '--config', file])).stdout.slice(0, shown.length), shown);
});

test('a model of windows alone is planned by them', async (t) => {
  const file = path.join(folderOf(t), 'mistral.json');
  writeFileSync(file, JSON.stringify(hybridConfigs['mistral-7b-v0.1']));
  t.like(await plan('--config', file, '--tokens', '32768', '--memory-bytes', '16GiB'), {
    layout: 'per-layer', rows: 5, pages: 5 * 64, rowsPerSlot: 32, sequencesThatFit: 25, unusedBytes: (5 * 64 - 256) * 2 ** 21,
  });
});

test('states are planned with their faces', async (t) => {
  const { stdout } = await runVkv(['plan', '--config', path.join(configs, 'qwen3-next.json')]);
  t.regex(stdout, /^qwen3-next\n8 layers \(6 state and 2 full\), .*\n\nset/);
  t.regex(stdout, /\nstate +6 +12\.28 MiB × 2 faces +14 pages\n/);
  t.like(await plan('--config', path.join(configs, 'qwen3-next.json'), '--tokens', '4096'), {
    constantSets: [{ kind: 'state', layers: 6, faces: 2, facePages: 7 }], pages: 14 + 4 * 2 * 1,
  });
});

slow('lays out 65,536 layers')('a model of as many layers as there may be is planned', async (t) => {
  t.like(await plan('--layers', '65536', '--kv-heads', '1', '--head-dim', '64', '--dtype', 'fp16'), { tensors: 131_072, tokenBytes: 128 });
});

test('of sequences that take no memory as many fit as there are slots', async (t) => {
  t.like(await plan('--slots', '9', '--tokens', '0', '--memory-bytes', '1GiB'), { pages: 0, sequencesThatFit: 9 });
});

test('--memory-bytes adds how many sequences fit, of --tokens or of the longest', async (t) => {
  const memory = ['--memory-bytes', '100GiB'];
  t.like(await plan(...yi34bTp2, ...memory, '--tokens', '33000'), {
    memoryBytes: 107_374_182_400, rowsThatFit: 426, sequencesThatFit: 25,
  });
  t.like(await plan(...yi34bTp2, ...memory), { rowsThatFit: 426, sequencesThatFit: 4 });
});

test('a token may be larger than a page', async (t) => {
  const sliced = [...yi34b, '--layout', 'sliced', '--page-bytes', '64KiB', '--tokens'];
  t.like(await plan(...sliced, '1'), { rows: 2, pages: 4 });
  t.like(await plan(...sliced, '8'), { rows: 15, pages: 30 });
});

test('`auto` is planned for a GPU or a CPU, and told with the rows of each layout', async (t) => {
  const { stdout } = await runVkv(['plan']);
  t.regex(stdout, /\nlayout +tokens shared at a time +row +first rows of 256 slots +attention on a CPU\nper-layer +1,024 +128 MiB +32 GiB +1 ×\nsliced +32 +4 MiB +1 GiB +1\.07 to 1\.3 ×\nfused +16 +2 MiB +512 MiB +0\.98 to 1\.13 ×\nauto on a GPU: per-layer, whose rows have at most 4,096 tokens\n$/);
  t.like(await plan(), {
    layout: 'per-layer',
    auto: { driverKind: 'cuda', layout: 'per-layer', layoutReason: 'short-rows', mostTokens: 4_096, rows: [{ layout: 'per-layer', rowTokens: 1024, rowBytes: 2 ** 27, firstRowsBytes: 2 ** 35 }] },
  });
  t.like(await plan('--driver', 'host'), { layout: 'fused', reservations: 1 });
  t.like(await plan('--driver', 'host', '--layout', 'sliced'), { layout: 'sliced', reservations: 2, auto: { layout: 'fused' } });
  const lineOf = async (...parameters: string[]): Promise<string | undefined> =>
    /^auto .*$/m.exec((await runVkv(['plan', '--driver', 'host', ...parameters])).stdout)?.[0];
  const wide = ['--layers', '2', '--kv-heads', '16', '--head-dim', '128', '--dtype', 'float16'];
  t.is(await lineOf(), 'auto on a CPU: fused, as rows of per-layer have more than 512 tokens');
  t.is(await lineOf(...wide), 'auto on a CPU: per-layer, whose rows have at most 512 tokens');
  t.is(await lineOf(...wide, '--memory-bytes', '4GiB'), 'auto on a CPU: fused, as the first rows of per-layer take more than a quarter of 4 GiB');
  t.is(await lineOf('--memory-bytes', '1GiB'), 'auto on a CPU: fused, as neither has rows of at most 512 tokens of which the first take at most a quarter of 1 GiB');
  t.is(await lineOf('--config', 'storyteller'), 'auto on a CPU: fused, as rows of per-layer have more than 256 tokens; pages of 64 KiB, as in 2 MiB no layout has rows short and small enough');
});

test('without a model it plans Llama-3-8B, and says so', async (t) => {
  t.like(await plan(), { maxTokens: 8192, tokensPerRow: 1024, reservations: 64 });
  t.like((await plan())['model'], { name: 'Llama-3-8B', source: 'default', layers: 32, kvHeads: 8, headDim: 128 });
  const { stdout, exitCode } = await runVkv(['plan', '--tokens', '5000', '--memory-bytes', '16GiB']);
  t.is(exitCode, 0);
  t.regex(stdout, /^Llama-3-8B \(the default; choose with --config/);
  t.regex(stdout, /5,000 tokens +5 rows = 320 pages = 640 MiB, of which 15 MiB \(2\.34 %\) not yet used/);
  t.regex(stdout, /in 16 GiB +128 rows: 25 sequences of 5,000 tokens/);
});

test('sizes have units', async (t) => {
  for (const size of ['2097152', '2MiB', '2048KiB', '2 mib']) t.is((await plan('--page-bytes', size))['pageBytes'], 2_097_152);
});

test('a config gives shape, dtype and longest sequence; flags replace what it says', async (t) => {
  const config = ['--config', path.join(configs, 'qwen2.json')];
  t.like(await plan(...config), { tokenBytes: 1024, reservations: 56, maxTokens: 131_072 });
  t.like((await plan(...config))['model'], { name: 'qwen2', source: 'config', dtype: 'bfloat16' });
  t.like(await plan(...config, '--dtype', 'fp8', '--max-tokens', '4096'), { tokenBytes: 512, maxTokens: 4096 });
  t.like(await plan(...config, '--tensor-parallel', '2', '--pipeline-parallel', '4'), { tokenBytes: 512, reservations: 14 });
});

test('MLA is planned from a config and from flags', async (t) => {
  const expected = { tokenBytes: 1152, reservations: 61, tensors: 61, totalTokenBytes: 70_272 };
  t.like(await plan('--config', path.join(configs, 'deepseek-v3.json')), expected);
  t.like(await plan('--layers', '61', '--latent-dim', '576', '--dtype', 'bf16', '--tensor-parallel', '8'), expected);
});

test('layers may differ', async (t) => {
  t.like(await plan('--config', path.join(configs, 'openelm.json'), '--tokens', '2048', '--page-bytes', '64KiB'), {
    reservations: 8, tokenBytes: 640, totalTokenBytes: 2 * 2 * 64 * 15, rows: 4, pages: 2 * (12 + 12 + 16 + 20),
  });
});

test('--compare sets layouts and page sizes side by side', async (t) => {
  const answer = await plan('--compare', '--tokens', '5000', '--page-bytes', '128KiB');
  const comparison = answer['comparison'] as Record<string, unknown>[];
  t.is(comparison.length, 4 * layoutKinds.length);
  t.like(comparison[0], { layout: 'per-layer', pageBytes: 65_536, tokensPerRow: 32, pages: 10_048 });
  t.like(comparison.filter(({ layout }) => layout === 'fused').at(-1), { layout: 'fused', pageBytes: 2_097_152, tokensPerRow: 16, pages: 313 });
  const lines = (await runVkv(['plan', '--compare', '--tokens', '5000', '--memory-bytes', '8GiB'])).stdout.split('\n');
  t.regex(lines.find((line) => line.startsWith('layout')) ?? '', /page +tokens per row.*unused +fit/);
  t.is(lines.filter((line) => layoutKinds.some((kind) => line.startsWith(`${kind} `))).length, 3 * layoutKinds.length);
});

test('a wrong command line ends with 2, one line and no stack', async (t) => {
  const wrong = async (parameters: readonly string[], code: string, says: string): Promise<void> => {
    const { exitCode, stdout, stderr } = await runVkv(['plan', ...parameters]);
    t.deepEqual({ exitCode, stdout }, { exitCode: 2, stdout: '' }, parameters.join(' '));
    t.regex(stderr, new RegExp(`^vkv: ${code}: .*${says}.*\\n$`), parameters.join(' '));
  };
  await wrong(['--slot', '4'], 'KV_UNKNOWN_OPTION', "'--slot'.* --slots\\?");
  for (const [flag, value, says = ''] of [
    ['--layers', 'x'], ['--slots', '0'], ['--page-bytes', '2 pages', '2MiB'], ['--page-bytes', '5000', '4 KiB'],
    ['--dtype', 'float12'], ['--layout', 'sliced-up'],
  ] as const) await wrong([flag, value], 'KV_INVALID_OPTION', `${flag}.*${says}`);
  await wrong(['--layers', '3'], 'KV_INVALID_OPTION', '`--kv-heads`');
  await wrong(['--layers', '3', '--latent-dim', '4', '--head-dim', '5'], 'KV_INVALID_OPTION', '`--head-dim`.*got 5');
  await wrong(['--tensor-parallel', '3'], 'KV_INVALID_SHAPE', '`--kv-heads`');
  await wrong(['--tokens', '8193'], 'KV_LENGTH_OUT_OF_RANGE', '`--max-tokens`');
  await wrong(['extra'], 'KV_INVALID_OPTION', 'arguments');
});

test('a config that cannot be read ends with 1; with --json the error is JSON', async (t) => {
  const { exitCode, stderr } = await runVkv(['plan', '--config', '/nowhere/config.json']);
  t.is(exitCode, 1);
  t.regex(stderr, /^vkv: KV_CONFIG_INVALID: \/nowhere\/config\.json: .*\n$/);
  const json = await runVkv(['plan', '--config', '/nowhere/config.json', '--json']);
  t.is(json.stdout, '');
  t.like((JSON.parse(json.stderr) as { error: object }).error, { code: 'KV_CONFIG_INVALID', recovery: 'fix' });
});

test('more addresses than numbers can count ends with 1', async (t) => {
  const { exitCode, stderr } = await spawnVkv(['plan', '--slots', '100000000', '--max-tokens', '1000000']);
  t.is(exitCode, 1);
  t.regex(stderr, /^vkv: KV_OUT_OF_ADDRESS_SPACE: /);
});

test('--probe-heads says what a second copy of keys costs, and when it is worth it', async (t) => {
  const llama = ['--layers', '32', '--kv-heads', '8', '--head-dim', '128'];
  t.deepEqual((await plan(...llama, '--probe-heads', '3'))['probes'], { heads: 3, kvHeads: 8, share: 0.1875, breakEvenRatio: 0.8125, halfRatio: 0.3125 });
  t.like((await plan(...llama.with(3, '4'), '--probe-heads', '3'))['probes'], { share: 0.375 });
  t.like((await plan(...llama.with(3, '2'), '--probe-heads', '3'))['probes'], { heads: 2, share: 0.5, halfRatio: 0 });
  t.regex((await runVkv(['plan', ...llama, '--probe-heads', '3'])).stdout, /keys of 3 of 8 KV heads once more: 18.75 % more bytes .* below a ratio of 81.25 %, and less than half below 31.25 %/);
  t.regex((await runVkv(['plan', '--layers', '2', '--latent-dim', '64', '--probe-heads', '3'])).stdout, /MLA keeps no keys of single heads/);
});
