// Reads what callers of DenseKernels pass: every member of their objects once, before any check that a getter could
// undo. Refuses unknown names, since a misspelt one would compute something else. Checks shapes; DenseKernels checks
// buffers.

import { createError } from '../../base/errors.js';
import type { NativeDense } from '../../device/native-kernels.js';
import { checkInteger, integer, number, oneOf, unknownOption } from '../../base/options.js';
import {
  int8Block, mostNeighbourDim, type Activation, type FloatBuffer, type Norm, type Product, type RotationShape,
  type Weight, type WeightDtype,
} from './dense-operands.js';

type Argument = Parameters<NativeDense['multiply']>[number];

/** As native: `enum class Dtype` of kernels/commands.h, and kInt8Weights of kernels/dense/cpu/int8.h. */
const dtypeNumbers: Readonly<Record<WeightDtype, number>> = { float32: 0, float16: 1, bfloat16: 2, int8: 3 };
export const { float32, int8 } = dtypeNumbers;
/** As native: `enum class Activation` of kernels/dense/dense_commands.h. */
const activationNumbers: Readonly<Record<Activation, number>> = { 'silu': 0, 'gelu-tanh': 1 };

const weightNames = { data: true, dtype: true, outputs: true, inputs: true } as const;
const productNames = { weight: true, bias: true, output: true, mode: true } as const;
const normNames = { weight: true, width: true, epsilon: true, mode: true } as const;
const rotationNames = { heads: true, dim: true, pairs: true } as const;
const dtypeField = oneOf(['float32', 'float16', 'bfloat16', 'int8']);
const blocksField = integer({ min: 1, multipleOf: int8Block.elements });
const modeField = oneOf(['replace', 'add']);
const epsilonField = number(0);
const activationField = oneOf(['silu', 'gelu-tanh']);
const capField = number(1e-6);
const factorField = number();
const dimField = integer({ min: 2, multipleOf: 2 });
const neighbourDimField = integer({ min: 2, max: mostNeighbourDim });
const pairsField = oneOf(['halves', 'neighbours']);
const onlyHalvesField = oneOf(['halves']);

/** A weight's members; `dtype` is its number. */
export interface ReadWeight {
  data: Weight['data'];
  dtype: number;
  outputs: number;
  inputs: number;
}

export interface ReadNorm {
  weight: FloatBuffer;
  width: number;
  epsilon: number;
  adds: boolean;
}

export interface ReadRotation {
  heads: number;
  dim: number;
  areNeighbours: boolean;
}

/** Arguments before the products, and of each product, as `NativeDense.multiply` takes them. */
const head = 3;
const each = 6;
/** Products of a call whose list is kept. */
const mostKept = 8;

/** The arguments of one `multiply` as the addon takes them, in a list that is reused. */
export class ProductArguments {
  /** Of the last `read`. */
  list: Argument[] = [];
  /** By the number of products, up to `mostKept`. */
  readonly #lists: (Argument[] | undefined)[] = [];
  readonly #weight: ReadWeight = { data: 0n, dtype: 0, outputs: 0, inputs: 0 };
  inputs = 0;

  /** Throws KV_INVALID_OPTION and KV_UNKNOWN_OPTION, and what a getter throws. */
  read(owner: string, input: FloatBuffer, rows: number, products: readonly Product[]): void {
    const list = this.list = this.#listFor(products.length);
    list[0] = input;
    list[1] = rows;
    for (let index = 0; index < products.length; index += 1) this.#add(owner, products[index]!, index);
    if (products.length === 0) this.inputs = 0;
    list[2] = this.inputs;
  }

  weightData(product: number): Weight['data'] {
    return this.list[head + each * product] as Weight['data'];
  }

  dtype(product: number): number {
    return this.list[head + each * product + 1] as number;
  }

  outputs(product: number): number {
    return this.list[head + each * product + 2] as number;
  }

  bias(product: number): FloatBuffer | undefined {
    return this.list[head + each * product + 3] as FloatBuffer | undefined;
  }

  output(product: number): FloatBuffer {
    return this.list[head + each * product + 4] as FloatBuffer;
  }

  #listFor(products: number): Argument[] {
    const length = head + each * products;
    if (products > mostKept) return new Array<Argument>(length);
    return this.#lists[products] ??= new Array<Argument>(length).fill(undefined);
  }

  #add(owner: string, product: Product, index: number): void {
    checkNames(owner, 'product', product, productNames);
    const { weight, bias, output, mode = 'replace' } = product;
    if (mode !== 'replace' && mode !== 'add') modeField(mode, { owner, option: 'mode' });
    const { data, dtype, outputs, inputs } = readWeight(owner, 'weight', weight, this.#weight);
    if (index === 0) this.inputs = inputs;
    else checkInteger(owner, 'weight.inputs', inputs, this.inputs, this.inputs);
    const { list } = this;
    const at = head + each * index;
    list[at] = data;
    list[at + 1] = dtype;
    list[at + 2] = outputs;
    list[at + 3] = bias;
    list[at + 4] = output;
    list[at + 5] = mode === 'add';
  }
}

/** Reads a weight's members into `into` and checks its shape. */
export function readWeight(owner: string, option: string, weight: Weight, into: ReadWeight): ReadWeight {
  checkNames(owner, option, weight, weightNames);
  const { data, dtype, outputs, inputs } = weight;
  if (dtype !== 'float32' && dtype !== 'float16' && dtype !== 'bfloat16' && dtype !== 'int8') {
    dtypeField(dtype, { owner, option: `${option}.dtype` });
  }
  into.dtype = dtypeNumbers[dtype];
  checkInteger(owner, `${option}.outputs`, outputs, 1);
  checkInteger(owner, `${option}.inputs`, inputs, 1);
  if (dtype === 'int8' && inputs % int8Block.elements !== 0) blocksField(inputs, { owner, option: `${option}.inputs` });
  into.data = data;
  into.outputs = outputs;
  into.inputs = inputs;
  return into;
}

/** Reads a norm into `into`; does not check `weight`. */
export function readNorm(owner: string, norm: Norm, into: ReadNorm): ReadNorm {
  checkNames(owner, 'norm', norm, normNames);
  const { weight, width, epsilon, mode } = norm;
  checkInteger(owner, 'width', width, 1);
  if (typeof epsilon !== 'number' || !(epsilon >= 0 && epsilon < Infinity)) {
    epsilonField(epsilon, { owner, option: 'epsilon' });
  }
  if (mode !== undefined && mode !== 'replace' && mode !== 'add') modeField(mode, { owner, option: 'mode' });
  into.weight = weight;
  into.width = width;
  into.epsilon = epsilon;
  into.adds = mode === 'add';
  return into;
}

/** Reads the shape of rotated rows into `into`; `dim` must be even. `isOnDevice`: pairs are halves there. */
export function readRotationShape(
  owner: string, shape: RotationShape, isOnDevice: boolean, into: ReadRotation,
): ReadRotation {
  checkNames(owner, 'shape', shape, rotationNames);
  const { heads, dim, pairs } = shape;
  checkInteger(owner, 'heads', heads, 1);
  checkInteger(owner, 'dim', dim, 2);
  if (dim % 2 !== 0) dimField(dim, { owner, option: 'dim' });
  const areNeighbours = pairs === 'neighbours';
  if (!areNeighbours && pairs !== undefined && pairs !== 'halves') pairsField(pairs, { owner, option: 'pairs' });
  if (areNeighbours && isOnDevice) onlyHalvesField(pairs, { owner, option: 'pairs' });
  if (areNeighbours && dim > mostNeighbourDim) neighbourDimField(dim, { owner, option: 'dim' });
  into.heads = heads;
  into.dim = dim;
  into.areNeighbours = areNeighbours;
  return into;
}

/** The number of an activation. */
export function readActivation(owner: string, activation: Activation): number {
  if (activation !== 'silu' && activation !== 'gelu-tanh') activationField(activation, { owner, option: 'activation' });
  return activationNumbers[activation];
}

export function readCap(owner: string, cap: number): number {
  return capField(cap, { owner, option: 'cap' });
}

export function readFactor(owner: string, factor: number): number {
  return factorField(factor, { owner, option: 'factor' });
}

/** Checks names without a list of them, since this runs once per product and layer. */
function checkNames(owner: string, option: string, given: object, names: Readonly<Record<string, true>>): void {
  if (typeof given !== 'object' || (given as object | null) === null) {
    throw createError('KV_INVALID_OPTION', { reason: 'type', owner, option, expected: 'an object', received: given });
  }
  for (const name in given) if (names[name] !== true
    && Object.hasOwn(given, name)) throw unknownOption(owner, name, Object.keys(names), `${option}.`);
}
