// What is read of an ONNX file: its nodes and small tensors, and where the large ones lie.

import { copyFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { planDecoder, writeDecoder } from '#internal/onnx/decoder-graph.js';
import { graphDigest } from '#internal/onnx/graph-digest.js';
import { readGraph } from '#internal/onnx/graph.js';
import { readModelFile } from '#internal/onnx/model-file.js';
import { fieldsOf, textOf } from '#internal/onnx/protobuf.js';

import { madeDecoder } from './made-decoder.js';
import { madeFile } from './onnx-world.js';

test("large tensors stay where they are in the graph's file", async (t) => {
  const made = madeDecoder();
  const { bytes } = made;
  const read = await readModelFile(madeFile(t, made));
  t.true(read.length < bytes.length / 4, `${read.length} of ${bytes.length} bytes`);
  const { tensors } = readGraph(writeDecoder(planDecoder(read, 'a.onnx'), new Map()).bytes, 'after');
  const before = readGraph(bytes, 'before').tensors;
  const entries = [...fieldsOf(tensors.get('embeddings')!.raw)]
    .filter(({ number }) => number === 13)
    .map((field) => [...fieldsOf(field.bytes)].map((part) => textOf(part.bytes)));
  t.deepEqual(
    entries.map(([key]) => key),
    ['location', 'offset', 'length'],
  );
  const [location, offset, length] = entries.map(([, value]) => value) as [string, string, string];
  t.is(location, 'model.onnx');
  const inside = [...fieldsOf(before.get('embeddings')!.raw)].find(({ number }) => number === 9)!.bytes;
  t.deepEqual(bytes.slice(Number(offset), Number(offset) + Number(length)), inside.slice());
  t.deepEqual(tensors.get('layer_0.norm1')!.raw, before.get('layer_0.norm1')!.raw);
});

test("a model's name for tiers is that of its nodes and weights, wherever these lie", async (t) => {
  const made = madeDecoder();
  const file = madeFile(t, made);
  const folder = path.dirname(file);
  const name = async (of: string): Promise<string> => graphDigest(readGraph(await readModelFile(of), of), folder);
  const own = await name(file);
  t.is(graphDigest(readGraph(made.bytes, 'whole'), folder), own, 'all of it in memory');
  copyFileSync(file, path.join(folder, 'copy.onnx'));
  t.is(await name(path.join(folder, 'copy.onnx')), own, 'another name of the file');
  t.not(graphDigest(readGraph(madeDecoder({}, 2).bytes, 'other'), folder), own, 'other weights');
});
