// `vkv plan`: how much address space and memory a model's KV cache takes. Prints the numbers of memory-plan.ts as a table or JSON.
// Opens no driver and maps nothing.

import { Command } from 'commander';

import { formatBytes, formatCount, formatNumber, printable, printableJson } from '../base/format.js';
import { layoutKinds, type LayoutOptions } from '../index.js';
import { countFrom, sizeFlag } from './flag-values.js';
import { flattenPlan, planMemory, usualAddressBytes, type MemoryPlan, type PlanQuestion, type ProbesPlan, type SequencePlan } from './memory-plan.js';
import {
  addLayoutOptions, addModelOptions, describeModel, selectModel, type LayoutFlags, type ModelFlags, type SelectedModel,
} from './model-options.js';
import { columnsTable, factsTable, type TableRow } from './table.js';

interface PlanFlags extends ModelFlags, LayoutFlags, PlanQuestion {
  readonly slots: number;
  readonly compare?: boolean;
  readonly json?: boolean;
}

/** The page of a GPU with a stock driver. */
const defaultPageBytes = 2 ** 21;

/** Page sizes that `--compare` shows besides the one of the flags. */
const comparedPageBytes = [2 ** 16, 2 ** 18, defaultPageBytes];

const tooManyAddresses = `more than the ${formatBytes(usualAddressBytes)} that a process can usually reserve; lower --slots or --max-tokens`;

export function planCommand(): Command {
  const command = new Command('plan').description("how much address space and memory a model's KV cache takes");
  addModelOptions(command);
  return addLayoutOptions(command, { pageBytes: '2 MiB', maxTokens: "the model's own limit, else 8,192" })
    .option('--slots <count>', 'sequences at a time', countFrom(1), 256)
    .option('--tokens <count>', 'also print what one sequence of this length takes', countFrom(0))
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
  const { layout, slots, pageBytes = defaultPageBytes } = flags;
  const options: LayoutOptions = { model, layout, slots, maxTokens, pageBytes };
  const answer = planMemory(options, flags);
  const compared = flags.compare ? comparePlans(options, flags) : undefined;
  if (flags.json) return printableJson(toJson(selected, answer, compared));
  const table = compared === undefined ? factsTable(facts(answer)) : comparisonTable(answer, compared);
  return `${heading(selected)}\n\n${table}`;
}

function comparePlans(options: LayoutOptions, question: PlanQuestion): MemoryPlan[] {
  const sizes = [...new Set([...comparedPageBytes, options.pageBytes])].sort((a, b) => a - b);
  return layoutKinds.flatMap((layout) =>
    sizes.map((pageBytes) => planMemory({ ...options, layout, pageBytes }, question)));
}

function toJson({ name, source, notes, model }: SelectedModel, answer: MemoryPlan, compared: MemoryPlan[] | undefined): unknown {
  return { model: { name, source, notes, ...model }, ...flattenPlan(answer), comparison: compared?.map(flattenPlan) };
}

function heading({ name, source, notes, model }: SelectedModel): string {
  const note = source === 'default' ? ' (the default; choose with --config, or --layers --kv-heads --head-dim)' : '';
  return [`${printable(name)}${note}`, describeModel(model), ...notes.map((text) => `Note: ${printable(text)}.`)].join('\n');
}

function facts(answer: MemoryPlan): TableRow[] {
  const { slots, maxTokens, tensors, reservations, pageBytes, sequence, memory, probes } = answer;
  const slotPages = answer.slotStrideBytes / pageBytes;
  const rows: TableRow[] = [
    ['layout', `${answer.layout}, pages of ${formatBytes(pageBytes)}`],
    ['slots', `${formatNumber(slots)} of ${formatCount('token', maxTokens)}`],
    ['one token', `${formatBytes(answer.tokenBytes, 2)} in one tensor, ` +
      `${formatBytes(answer.totalTokenBytes, 2)} in all ${tensors}`],
    ['one row', `${formatCount('page', answer.pagesPerRow)} = ${formatBytes(answer.rowBytes)} for ` +
      `${formatNumber(answer.tokensPerRow, 2)} tokens; a slot has up to ${formatNumber(answer.rowsPerSlot)}`],
    ['a row on a GPU', `${formatNumber(answer.pagesPerRow)} cuMemMap and ${formatNumber(reservations)} cuMemSetAccess ` +
      `every ${formatNumber(answer.tokensPerRow, 2)} tokens of a sequence`],
    ['one slot', `${formatBytes(answer.slotBytes)} in one reservation, ${formatBytes(answer.slotStrideBytes)} apart ` +
      `(${formatCount('page', slotPages)})`],
    ['addresses', `${formatCount('reservation', reservations)} of ${formatBytes(answer.reservationBytes)} = ` +
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
