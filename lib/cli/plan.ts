// `vkv plan`: how much address space and memory a model's KV cache takes. Prints the numbers of memory-plan.ts as a table or JSON.
// Opens no driver and maps nothing.

import { Command, Option } from 'commander';

import { formatBytes, formatCount, formatNumber, printable, printableJson } from '../base/format.js';
import { layoutKinds, type LayoutOptions, type LayoutReason } from '../index.js';
import { choosePageBytes } from '../layout/layout.js';
import { countFrom, sizeFlag } from './flag-values.js';
import {
  flattenPlan, planAuto, planMemory, usualAddressBytes, type AutoPlan, type ConstantSetPlan, type MemoryPlan,
  type PlanQuestion, type ProbesPlan, type SequencePlan, type SetPlan,
} from './memory-plan.js';
import {
  addLayoutOptions, addModelOptions, describeModel, selectModel, type LayoutFlags, type ModelFlags, type SelectedModel,
} from './model-options.js';
import { columnsTable, factsTable, type TableRow } from './table.js';

interface PlanFlags extends ModelFlags, LayoutFlags, PlanQuestion {
  readonly driver: 'cuda' | 'host';
  readonly slots: number;
  readonly compare?: boolean;
  readonly json?: boolean;
}

/** The page of both drivers. */
const defaultPageBytes = 2 ** 21;

/** Page sizes of the drivers, a GPU's by a stock one. */
const pagesOf = {
  cuda: { info: { granularityBytes: defaultPageBytes, defaultPageBytes } },
  host: { info: { granularityBytes: 2 ** 16, defaultPageBytes } },
};

/** Page sizes that `--compare` shows besides the one of the flags. */
const comparedPageBytes = [2 ** 16, 2 ** 18, defaultPageBytes];

const tooManyAddresses = `more than the ${formatBytes(usualAddressBytes)} that a process can usually reserve; lower --slots or --max-tokens`;

export function planCommand(): Command {
  const command = new Command('plan').description("print how much address space and memory a model's KV cache takes");
  addModelOptions(command);
  return addLayoutOptions(command, {
    pageBytes: '2 MiB; with --driver host less where --layout auto needs it', maxTokens: "the model's own limit, else 8,192",
  })
    .addOption(new Option('--driver <kind>', 'where kernels read: cuda a GPU, host the CPU; `--layout auto` depends on it')
      .choices(['cuda', 'host']).default('cuda'))
    .option('--slots <count>', 'sequences at a time', countFrom(1), 256)
    .option('--tokens <count>', 'also print what one sequence of this length takes', countFrom(0))
    .option('--pass-tokens <count>', 'new tokens of a sequence in a pass, which windows hold besides (default: 1)', countFrom(1))
    .option('--memory-bytes <size>', 'also print how much fits into this memory', sizeFlag)
    .option('--probe-heads <count>', 'also print what a second copy of so many heads\' keys costs below the device', countFrom(1))
    .option('--compare', 'print layouts and page sizes side by side')
    .option('--json', 'print JSON, sizes in bytes')
    .action((flags: PlanFlags) => {
      process.stdout.write(`${plan(flags)}\n`);
    });
}

function plan(flags: PlanFlags): string {
  const selected = selectModel(flags);
  const { model, maxTokens } = selected;
  const { layout, slots, driver: driverKind, memoryBytes: memoryBudgetBytes } = flags;
  const size = { model, layout, slots, maxTokens, driverKind };
  const pageBytes = flags.pageBytes ?? choosePageBytes({ ...size, memoryBudgetBytes }, pagesOf[driverKind]);
  const options: LayoutOptions = { ...size, pageBytes };
  const answer = planMemory(options, flags);
  const compared = flags.compare ? comparePlans(options, flags) : undefined;
  const auto = planAuto(options, flags);
  if (flags.json) return printableJson(toJson(selected, answer, auto, compared));
  const table = compared === undefined ? factsTable(facts(answer)) : comparisonTable(answer, compared);
  const choice = auto === undefined ? [] : [...compared === undefined ? [rowsTable(auto, answer)] : [], autoText(auto, answer, flags)];
  const sets = answer.sets.length + answer.constantSets.length > 1 || answer.sets[0]!.kind !== 'full' ? [setsTable(answer)] : [];
  return [heading(selected), ...sets, table, choice.join('\n')].filter((text) => text !== '').join('\n\n');
}

function comparePlans(options: LayoutOptions, question: PlanQuestion): MemoryPlan[] {
  const sizes = [...new Set([...comparedPageBytes, options.pageBytes])].sort((a, b) => a - b);
  return layoutKinds.flatMap((layout) =>
    sizes.map((pageBytes) => planMemory({ ...options, layout, pageBytes }, question)));
}

function toJson(
  { name, source, notes, model }: SelectedModel, answer: MemoryPlan, auto: AutoPlan | undefined,
  compared: MemoryPlan[] | undefined,
): unknown {
  return { model: { name, source, notes, ...model }, ...flattenPlan(answer), auto, comparison: compared?.map(flattenPlan) };
}

function heading({ name, source, notes, model }: SelectedModel): string {
  const note = source === 'default' ? ' (the default; choose with --config, or --layers --kv-heads --head-dim)' : '';
  return [`${printable(name)}${note}`, describeModel(model), ...notes.map((text) => `Note: ${printable(text)}.`)].join('\n');
}

/** One line for each layer set, and why windows have their layout. */
function setsTable({ sets, constantSets, passTokens }: MemoryPlan): string {
  const headings = ['set', 'layers', 'keeps', 'one token', 'layout', 'tokens per row', 'most rows', 'most of a sequence'];
  const rows = sets.map((set) => [
    set.kind, formatNumber(set.layers), set.keptTokens === undefined ? 'all tokens' : formatCount('token', set.keptTokens),
    formatBytes(set.tokenBytes, 2), set.layout, formatNumber(set.tokensPerRow, 2), formatNumber(set.mostRows), formatBytes(set.mostBytes, 2),
  ]);
  const constant = constantSets.map((set) => [set.kind, formatNumber(set.layers), ...constantCells(set)]);
  const about = sets.filter(({ kind }) => kind !== 'full').map((set) => `${set.kind}: ${set.layout}, ${reasonText(set, passTokens)}`);
  return [columnsTable(headings, [...rows, ...constant]), ...about].join('\n');
}

function constantCells({ kind, faces, faceBytes, facePages }: ConstantSetPlan): readonly string[] {
  if (kind === 'shared') return ["another layer's", '', '', '', '', '0 B'];
  const keeps = kind === 'state' ? `${formatBytes(faceBytes, 2)} × ${formatCount('face', faces)}` : formatBytes(faceBytes, 2);
  return [keeps, '', '', '', '', formatCount('page', faces * facePages)];
}

function reasonText({ layoutReason, keptBytes = 0, mostBytes }: SetPlan, passTokens: number): string {
  const passes = passTokens === 1 ? '' : `, with ${formatCount('new token', passTokens)} in a pass`;
  const takes = `${formatBytes(mostBytes, 2)} for ${formatBytes(keptBytes, 2)}${passes}`;
  switch (layoutReason) {
    case 'small':
      return `the first layout that takes at most 1.5 times the bytes of its tokens: ${takes}`;
    case 'smallest':
      return `as every layout takes more than 1.5 times the bytes of its tokens: ${takes}`;
    default:
      return `as the model says: ${takes}`;
  }
}

/** Time of decode attention on a CPU, against `per-layer`: docs/benchmarks.md. On a GPU it was not taken yet. */
const readTimes = { 'per-layer': '1 ×', 'sliced': '1.07 to 1.3 ×', 'fused': '0.98 to 1.13 ×' };

/** The rows of each layout. */
function rowsTable({ rows }: AutoPlan, { slots }: MemoryPlan): string {
  const first = `first rows of ${formatCount('slot', slots)}`;
  const headings = ['layout', 'tokens shared at a time', 'row', first, 'attention on a CPU'];
  const cells = rows.map((row) => [
    row.layout, formatNumber(row.rowTokens, 2), formatBytes(row.rowBytes, 2), formatBytes(row.firstRowsBytes, 2),
    readTimes[row.layout],
  ]);
  return columnsTable(headings, cells);
}

/** Which layout `--layout auto` is, and why. */
function autoText(
  { layout, layoutReason, mostTokens, driverKind }: AutoPlan, { memory, pageBytes }: MemoryPlan, flags: PlanFlags,
): string {
  const tokens = formatCount('token', mostTokens);
  const isHost = driverKind === 'host';
  const budget = memory === undefined || !isHost ? '' : `a quarter of ${formatBytes(memory.memoryBytes)}`;
  const reasons: Partial<Record<LayoutReason, string>> = {
    'short-rows': layout === 'per-layer' ? `whose rows have at most ${tokens}` : `as rows of per-layer have more than ${tokens}`,
    'budget': `as the first rows of per-layer take more than ${budget}`,
    'smallest': budget === '' ? `as rows of both have more than ${tokens}`
      : `as neither has rows of at most ${tokens} of which the first take at most ${budget}`,
  };
  const pages = flags.pageBytes !== undefined || pageBytes === defaultPageBytes ? ''
    : `; pages of ${formatBytes(pageBytes)}, as in ${formatBytes(defaultPageBytes)} no layout has rows short and small enough`;
  return `auto on a ${isHost ? 'CPU' : 'GPU'}: ${layout}, ${reasons[layoutReason]}${pages}`;
}

function facts(answer: MemoryPlan): TableRow[] {
  const { slots, maxTokens, tensors, reservations, pageBytes, sets, sequence, memory, probes } = answer;
  const own = sets.length > 1 ? ` (${sets[0]!.kind})` : '';
  const ranges = sets.length > 1
    ? `${formatCount('reservation', reservations)}, together`
    : `${formatCount('reservation', reservations)} of ${formatBytes(answer.reservationBytes)} =`;
  const slotPages = answer.slotStrideBytes / pageBytes;
  const rows: TableRow[] = [
    [`layout${own}`, `${answer.layout}, pages of ${formatBytes(pageBytes)}`],
    ['slots', `${formatNumber(slots)} of ${formatCount('token', maxTokens)}`],
    ['one token', `${formatBytes(answer.tokenBytes, 2)} in one tensor, ` +
      `${formatBytes(answer.totalTokenBytes, 2)} in all ${tensors}`],
    [`one row${own}`, `${formatCount('page', answer.pagesPerRow)} = ${formatBytes(answer.rowBytes)} for ` +
      `${formatNumber(answer.tokensPerRow, 2)} tokens; a slot has up to ${formatNumber(answer.rowsPerSlot)}`],
    [`a row on a GPU${own}`, `${formatNumber(answer.pagesPerRow)} cuMemMap and ${formatNumber(answer.pagesPerRow)} cuMemSetAccess ` +
      `every ${formatNumber(answer.tokensPerRow, 2)} tokens of a sequence`],
    [`one slot${own}`, `${formatBytes(answer.slotBytes)} in one reservation, ${formatBytes(answer.slotStrideBytes)} apart ` +
      `(${formatCount('page', slotPages)})`],
    ['addresses', `${ranges} ` +
      `${formatBytes(answer.virtualBytes)}, ${answer.isReservable ? 'which cost nothing until mapped' : tooManyAddresses}`],
  ];
  if (sequence !== undefined) {
    rows.push([formatCount('token', sequence.tokens), `${formatCount('row', sequence.rows)} = ` +
      `${formatCount('page', sequence.pages)} = ${formatBytes(sequence.physicalBytes, 2)}, of which ` +
      `${formatBytes(sequence.unusedBytes)} (${unusedPercent(sequence)}) not yet used`]);
  }
  if (memory !== undefined) {
    rows.push([`in ${formatBytes(memory.memoryBytes)}`, `${formatCount('row', memory.rowsThatFit)}: ` +
      `${formatCount('sequence', memory.sequencesThatFit)} of ${formatCount('token', sequence?.tokens ?? maxTokens)}` +
      (memory.sequencesThatFit > slots ? ', more than there are slots' : '')]);
  }
  if (probes !== undefined) rows.push(['probes', probesText(probes)]);
  return rows;
}

function probesText({ heads, kvHeads, share, breakEvenRatio, halfRatio }: ProbesPlan): string {
  const percent = (part: number): string => `${formatNumber(100 * part, 2)} %`;
  if (heads === 0) return 'none: MLA keeps no keys of single heads, and text is loaded whole';
  const half = halfRatio > 0 ? `, and less than half below ${percent(halfRatio)}` : ', and never less than half';
  return `keys of ${formatNumber(heads)} of ${formatCount('KV head', kvHeads)} once more: ${percent(share)} more bytes in tiers; ` +
    `selecting reads less than all below a ratio of ${percent(breakEvenRatio)}${half}`;
}

function comparisonTable({ sequence, memory, slots, maxTokens }: MemoryPlan, compared: readonly MemoryPlan[]): string {
  const about = [`${formatNumber(slots)} slots of ${formatCount('token', maxTokens)}`];
  const headings = ['layout', 'page', 'tokens per row', 'pages per row', 'row', 'addresses'];
  if (sequence !== undefined) {
    about.push(`pages, memory and unused: one sequence of ${formatCount('token', sequence.tokens)}`);
    headings.push('pages', 'memory', 'unused');
  }
  if (memory !== undefined) {
    const tokens = formatCount('token', sequence?.tokens ?? maxTokens);
    about.push(`fit: sequences of ${tokens} in ${formatBytes(memory.memoryBytes)}`);
    headings.push('fit');
  }
  const rows = compared.map((answer) => {
    const cells = [
      answer.layout, formatBytes(answer.pageBytes), formatNumber(answer.tokensPerRow, 2),
      formatNumber(answer.pagesPerRow), formatBytes(answer.rowBytes), formatBytes(answer.virtualBytes),
    ];
    if (answer.sequence !== undefined) {
      const { pages, physicalBytes } = answer.sequence;
      cells.push(formatNumber(pages), formatBytes(physicalBytes, 2), unusedPercent(answer.sequence));
    }
    if (answer.memory !== undefined) cells.push(formatNumber(answer.memory.sequencesThatFit));
    return cells;
  });
  if (compared.some(({ isReservable }) => !isReservable)) about.push(`addresses: some are ${tooManyAddresses}`);
  return `${columnsTable(headings, rows)}\n\n${about.join('\n')}`;
}

function unusedPercent({ physicalBytes, unusedBytes }: SequencePlan): string {
  return physicalBytes === 0 ? '0 %' : `${formatNumber((100 * unusedBytes) / physicalBytes, 2)} %`;
}
