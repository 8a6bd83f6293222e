// What a plan of a Hugging Face config leaves out or takes for more than it is: layers that see a window of the text only, and
// layers that keep a state instead of K and V. One sentence each, without its full stop; pure.

import { formatCount, formatNumber } from '../base/format.js';

type Json = Readonly<Record<string, unknown>>;

/** Names under which configs say which layers have attention, where they have no `layer_types`. */
const otherPatterns = [
  'full_attention_interval', 'attn_layer_period', 'attn_layer_indices', 'layers_block_type', 'hybrid_override_pattern',
] as const;

/** Whether a layer of this type keeps K and V of its own. */
export function keepsKeysAndValues(type: unknown): boolean {
  return /attention/.test(String(type)) && !/linear/.test(String(type));
}

/** `maxTokens`: the longest text, where the config says it. */
export function notesOnLayers(config: Json, maxTokens: number | undefined): string[] {
  const window = [config['sliding_window'], config['attention_chunk_size']].find((value) => Number.isSafeInteger(value)) as number | undefined;
  const seen = window === undefined ? 'a part of the text' : `a window of ${formatCount('token', window)}`;
  const planned = 'planned as if they kept every token';
  const types = config['layer_types'];
  if (Array.isArray(types) && types.length > 0) {
    const of = (some: readonly unknown[]): string => `${formatNumber(some.length)} of ${formatCount('layer', types.length)}`;
    const windowed = types.filter((type) => keepsKeysAndValues(type) && /sliding|chunked|local|window/.test(String(type)));
    const without = types.filter((type) => !keepsKeysAndValues(type));
    return [
      ...windowed.length > 0 ? [`${of(windowed)} see ${seen} only, ${planned}`] : [],
      ...without.length > 0 ? [`${of(without)} keep no K and V (${[...new Set(without)].join(', ')}); they and their state are left out`] : [],
    ];
  }
  const isWindowed = window !== undefined && config['use_sliding_window'] !== false && (maxTokens === undefined || window < maxTokens);
  const pattern = otherPatterns.find((name) => config[name] !== undefined && config[name] !== null);
  return [
    ...isWindowed ? [`layers that see ${seen} only are ${planned}`] : [],
    ...pattern === undefined ? [] : [`\`${pattern}\` is not read: all layers are planned as attention; give \`--layers\` with the number that keep K and V`],
  ];
}
