// GgufFile: what the header of a GGUF file says: values by their keys, and where each tensor lies. Versions 2 and 3, little-endian; every
// length is checked against the file before it is believed. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

import type { WeightDtype } from '../../kernels/dense/dense-operands.js';
import { modelError } from '../model-error.js';
import { openWeightFile, type WeightFile, type WeightPlacement } from '../weight-file.js';
import { GgufCursor } from './gguf-cursor.js';
import { ggufAlignment } from './gguf-header.js';

/** A value of the header; a list of many is not kept, only how many it has. */
export type GgufValue = number | boolean | string | readonly (number | boolean | string)[] | { readonly count: number };

/** A tensor of the file. */
export interface GgufTensor {
  readonly name: string;
  readonly type: GgmlType;
  /** `[outputs, inputs]`, or of a vector its length. */
  readonly shape: readonly number[];
  /** Where its bytes begin in the file. */
  readonly offset: number;
  readonly bytes: number;
}

const magic = 'GGUF';
const versions: readonly number[] = [2, 3];
/** A vocabulary's lists are longer. */
const longestKept = 1024;
const mostDimensions = 4;
/** The numbers of value types, in the order of their definition. */
const valueKinds = ['u8', 'i8', 'u16', 'i16', 'u32', 'i32', 'f32', 'bool', 'string', 'array', 'u64', 'i64', 'f64'] as const;

type ValueKind = typeof valueKinds[number];

export class GgufFile {
  readonly file: WeightFile;
  readonly values = new Map<string, GgufValue>();
  readonly tensors = new Map<string, GgufTensor>();
  /** Where keys with their types and values lie in the file: from, to. */
  readonly places = new Map<string, readonly [number, number]>();
  readonly #keeps: ReadonlySet<string>;

  /** Opens a file and reads its header. `keeps`: keys whose lists are kept, however long. Throws KV_MODEL_INVALID. */
  constructor(path: string, placement: WeightPlacement, keeps: ReadonlySet<string> = new Set()) {
    this.#keeps = keeps;
    this.file = openWeightFile(path, placement, 'Name a .gguf file, or the folder of a Hugging Face model.');
    try {
      this.#read(new GgufCursor(this.file));
    } catch (error) {
      this.file.close();
      throw error;
    }
  }

  #read(cursor: GgufCursor): void {
    const start = cursor.bytes(4).toString('latin1');
    if (start !== magic) cursor.fail(`begins with ${JSON.stringify(start)} instead of ${magic}`);
    const version = cursor.number('u32');
    if (!versions.includes(version)) cursor.fail(`is of version ${version}; versions ${versions.join(' and ')} are read (a big-endian file looks like another version)`);
    const [tensors, values] = [cursor.number('u64'), cursor.number('u64')];
    for (let index = 0; index < values; index += 1) {
      const { at } = cursor;
      const key = cursor.text();
      if (this.values.has(key)) cursor.fail(`has the key ${JSON.stringify(key)} twice`);
      this.values.set(key, this.#value(cursor, this.#kind(cursor), this.#keeps.has(key)));
      this.places.set(key, [at, cursor.at]);
    }
    const alignment = this.#alignment(cursor);
    const found = Array.from({ length: cursor.atMost(tensors, 24, 'tensors') }, () => this.#tensor(cursor));
    this.#place(found, Math.ceil(cursor.at / alignment) * alignment, alignment, cursor);
  }

  #kind(cursor: GgufCursor): ValueKind {
    const number = cursor.number('u32');
    return valueKinds[number] ?? cursor.fail(`has a value of type ${number}`);
  }

  #value(cursor: GgufCursor, kind: ValueKind, isKept: boolean): GgufValue {
    if (kind === 'string') return cursor.text();
    if (kind === 'bool') return cursor.number('u8') !== 0;
    if (kind !== 'array') return cursor.number(kind);
    const element = this.#kind(cursor);
    if (element === 'array') return cursor.fail('has a list of lists');
    const count = cursor.atMost(cursor.number('u64'), 1, 'elements of a list');
    if (count > longestKept && !isKept) {
      for (let index = 0; index < count; index += 1) cursor.skip(element);
      return { count };
    }
    return Array.from({ length: count }, () => this.#value(cursor, element, false) as number | boolean | string);
  }

  #alignment(cursor: GgufCursor): number {
    const alignment = this.values.get('general.alignment') ?? ggufAlignment;
    if (typeof alignment === 'number' && alignment > 0 && alignment % 8 === 0) return alignment;
    return cursor.fail(`has the alignment ${JSON.stringify(alignment)}, which is no multiple of 8`);
  }

  /** Its offset is not yet from the file's start. */
  #tensor(cursor: GgufCursor): GgufTensor {
    const name = cursor.text();
    const dimensions = cursor.number('u32');
    if (dimensions < 1 || dimensions > mostDimensions) cursor.fail(`gives tensor \`${name}\` ${dimensions} dimensions`);
    const shape = Array.from({ length: dimensions }, () => cursor.number('u64')).reverse(); // the file has the innermost first
    const number = cursor.number('u32');
    const offset = cursor.number('u64');
    const type = ggmlTypes.get(number) ?? cursor.fail(`gives tensor \`${name}\` the type ${number}, which is unknown`);
    const elements = shape.reduce((product, extent) => product * extent, 1);
    if (!Number.isSafeInteger(elements) || shape.some((extent) => extent < 1)) cursor.fail(`makes tensor \`${name}\` [${shape.join(', ')}]`);
    if (shape.at(-1)! % type.blockElements !== 0) cursor.fail(`gives tensor \`${name}\` rows of ${shape.at(-1)} elements, but ${type.name} has blocks of ${type.blockElements}`);
    return { name, type, shape, offset, bytes: elements / type.blockElements * type.blockBytes };
  }

  /** Tensors lie behind the header, one behind the other, each on an aligned place. */
  #place(found: readonly GgufTensor[], from: number, alignment: number, cursor: GgufCursor): void {
    let end = from;
    for (const tensor of [...found].sort((a, b) => a.offset - b.offset)) {
      const offset = from + tensor.offset;
      if (offset < end || tensor.offset % alignment !== 0 || offset + tensor.bytes > this.file.bytes) {
        cursor.fail(`places tensor \`${tensor.name}\`, ${tensor.bytes} bytes, at ${offset}; there is room at ${end} … ${this.file.bytes}, at multiples of ${alignment}. ` +
          'Is the download complete?');
      }
      end = offset + tensor.bytes;
      if (this.tensors.has(tensor.name)) throw modelError(`${this.file.path} has two tensors \`${tensor.name}\`.`);
      this.tensors.set(tensor.name, { ...tensor, offset });
    }
  }
}

/** A type that tensors may have. */
export interface GgmlType {
  readonly name: string;
  readonly blockElements: number;
  readonly blockBytes: number;
  /** As the kernels call it; undefined: they have none. */
  readonly dtype: WeightDtype | undefined;
}

type Row = readonly [number: number, name: string, blockElements: number, blockBytes: number, dtype?: WeightDtype];

const rows: readonly Row[] = [
  [0, 'F32', 1, 4, 'float32'], [1, 'F16', 1, 2, 'float16'], [8, 'Q8_0', 32, 34, 'int8'], [30, 'BF16', 1, 2, 'bfloat16'],
  [2, 'Q4_0', 32, 18], [3, 'Q4_1', 32, 20], [6, 'Q5_0', 32, 22], [7, 'Q5_1', 32, 24], [9, 'Q8_1', 32, 36],
  [10, 'Q2_K', 256, 84], [11, 'Q3_K', 256, 110], [12, 'Q4_K', 256, 144], [13, 'Q5_K', 256, 176], [14, 'Q6_K', 256, 210], [15, 'Q8_K', 256, 292],
  [16, 'IQ2_XXS', 256, 66], [17, 'IQ2_XS', 256, 74], [18, 'IQ3_XXS', 256, 98], [19, 'IQ1_S', 256, 50], [20, 'IQ4_NL', 32, 18],
  [21, 'IQ3_S', 256, 110], [22, 'IQ2_S', 256, 82], [23, 'IQ4_XS', 256, 136], [24, 'I8', 1, 1], [25, 'I16', 1, 2], [26, 'I32', 1, 4],
  [27, 'I64', 1, 8], [28, 'F64', 1, 8], [29, 'IQ1_M', 256, 56], [34, 'TQ1_0', 256, 54], [35, 'TQ2_0', 256, 66], [39, 'MXFP4', 32, 17],
];

/** Types by their numbers in a file. */
const ggmlTypes: ReadonlyMap<number, GgmlType> = new Map(
  rows.map(([number, name, blockElements, blockBytes, dtype]) => [number, { name, blockElements, blockBytes, dtype }]));
