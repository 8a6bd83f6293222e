// Counts, for each public call of KvCache, the files of lib/ entered, the calls from one file into another, and the calls of the
// addon. Compiles lib/ into build-trips/ with a counter at the head of every function, then makes each kind of call on the host
// driver and prints a table.
//
//   node scripts/count-trips.mjs                     the table
//   node scripts/count-trips.mjs 'acquire, miss'     the arrows of one call, the most used first

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

import { prepare, root } from './prepare.mjs';

prepare();
const require = createRequire(import.meta.url);
const ts = require('typescript');
const Table = require('cli-table3');

compileInstrumented();
const trips = globalThis.vkvTrips = makeCounter();
countAddonCalls();
const { KvCache } = require(path.join(root, 'build-trips', 'index.js'));

const [shown] = process.argv.slice(2);
const table = new Table({ head: ['call', 'files entered', 'calls between files', 'addon calls'], style: { head: [], border: [] } });
for (const [name, { files, calls, addon, arrows }] of Object.entries(measure())) {
  const publishes = addon.filter((call) => call === 'publish').length;
  if (shown === name) for (const [arrow, times] of [...arrows].sort((a, b) => b[1] - a[1])) console.log(String(times).padStart(4), arrow);
  table.push([name, files, calls, publishes === 0 ? addon.length : `${addon.length} (${publishes} publish)`]);
}
console.log(table.toString());

/** Each kind of call, counted once; where the first of its kind does extra work, after one that is not counted. */
function measure() {
  const results = {};
  const count = (name, work) => {
    trips.start();
    try {
      return work();
    } finally {
      results[name] = trips.stop();
    }
  };
  const rowTokens = 1024; // of this shape, with pages of 2 MiB
  const cache = new KvCache({
    driver: 'host', model: { layers: 2, kvHeads: 8, headDim: 128, dtype: 'float16' }, slots: 16, maxTokens: 16 * rowTokens,
    memoryBudgetBytes: 2 ** 30, growth: () => 0,
  });
  const batch = cache.createBatch();
  const compute = (sequence, tokens) => {
    batch.clear();
    batch.add(sequence, tokens);
    cache.prepare(batch);
    cache.commit(batch);
  };
  const text = (seed, length) => Array.from({ length }, (_, index) => (index * 31 + seed * 7919) % 50_000);
  const serve = (tokens) => {
    const sequence = cache.acquire({ tokens });
    compute(sequence, tokens.length - sequence.cachedTokens);
    return sequence;
  };
  serve(text(4, rowTokens)).release(); // what is made at the first use
  const prompt = text(1, 3 * rowTokens + 100);
  const first = serve(prompt);

  batch.clear();
  batch.add(first, 1);
  count('prepare, steady', () => { cache.prepare(batch); });
  count('commit, steady', () => { cache.commit(batch); });
  count('release', () => { first.release(); });
  const adopted = count('acquire, adopt', () => cache.acquire({ tokens: [...prompt, 1, 2] }));
  compute(adopted, 2);
  const other = [...prompt.slice(0, 2 * rowTokens + 50), ...text(2, 200)];
  const aliased = count('acquire, alias + copy', () => cache.acquire({ tokens: other }));
  compute(aliased, other.length - aliased.cachedTokens);
  const missed = count('acquire, miss', () => cache.acquire({ tokens: text(3, 2_000) }));
  compute(missed, 2_000);
  count('acquire, no tokens', () => cache.acquire({ promptTokens: 100 })).release();
  count('fork', () => missed.fork());
  cache.close();
  return results;
}

function makeCounter() {
  const stack = [];
  let files = new Set();
  let calls = 0;
  let addon = [];
  let arrows = new Map();
  let isCounting = false;
  return {
    enter(file) {
      if (isCounting) {
        files.add(file);
        if (stack.at(-1) !== file) {
          const arrow = `${stack.at(-1) ?? 'the caller'} -> ${file}`;
          arrows.set(arrow, (arrows.get(arrow) ?? 0) + 1);
          calls += 1;
        }
      }
      stack.push(file);
    },
    leave() {
      stack.pop();
    },
    addonCall(name) {
      if (isCounting) addon.push(name);
    },
    start() {
      [files, calls, addon, arrows, isCounting] = [new Set(), 0, [], new Map(), true];
    },
    stop() {
      isCounting = false;
      return { files: files.size, calls, addon, arrows };
    },
  };
}

/** Loads the addon with classes whose methods are counted. */
function countAddonCalls() {
  const addon = require(process.env.VKV_ADDON ?? path.join(root, 'build', 'Release', 'virtual_kv.node'));
  const counted = Object.fromEntries(Object.entries(addon).map(([name, value]) =>
    [name, name.startsWith('Native') ? countedClass(value) : value]));
  const file = path.join(root, 'build-trips', 'addon.cjs');
  writeFileSync(file, 'module.exports = globalThis.vkvTrips.addon;\n');
  trips.addon = counted;
  process.env.VKV_ADDON = file;
}

function countedClass(Native) {
  const Counted = class extends Native {};
  for (const name of Object.getOwnPropertyNames(Native.prototype)) {
    const call = Object.getOwnPropertyDescriptor(Native.prototype, name).value;
    if (name === 'constructor' || typeof call !== 'function') continue;
    Object.defineProperty(Counted.prototype, name, {
      value(...parameters) {
        trips.addonCall(name);
        return call.apply(this, parameters);
      },
    });
  }
  return Counted;
}

function compileInstrumented() {
  const { config } = ts.readConfigFile(path.join(root, 'tsconfig.json'), (file) => readFileSync(file, 'utf8'));
  const outDir = path.join(root, 'build-trips');
  mkdirSync(outDir, { recursive: true });
  const { options, fileNames } = ts.parseJsonConfigFileContent(
    { ...config, compilerOptions: { ...config.compilerOptions, outDir: 'build-trips', declaration: false, declarationMap: false, sourceMap: false } },
    ts.sys, root);
  const { emitSkipped } = ts.createProgram(fileNames, options).emit(undefined, undefined, undefined, false, { before: [instrument] });
  if (emitSkipped) throw new Error('lib/ could not be compiled.');
}

/** Puts `vkvTrips.enter(file); try { … } finally { vkvTrips.leave(); }` around the body of every function but generators. */
function instrument(context) {
  const { factory } = context;
  const call = (method, ...parameters) => factory.createExpressionStatement(factory.createCallExpression(
    factory.createPropertyAccessExpression(factory.createPropertyAccessExpression(
      factory.createIdentifier('globalThis'), 'vkvTrips'), method), undefined, parameters));
  return (source) => {
    const name = path.relative(path.join(root, 'lib'), source.fileName);
    const wrap = (body) => {
      const block = ts.isBlock(body) ? body : factory.createBlock([factory.createReturnStatement(body)], true);
      return factory.createBlock([
        call('enter', factory.createStringLiteral(name)),
        factory.createTryStatement(block, undefined, factory.createBlock([call('leave')], true)),
      ], true);
    };
    const visit = (node) => {
      const inner = ts.visitEachChild(node, visit, context);
      if (inner.body === undefined || inner.asteriskToken !== undefined || inner.modifiers?.some(({ kind }) => kind === ts.SyntaxKind.AsyncKeyword)) return inner;
      const { modifiers, parameters, body, type, typeParameters } = inner;
      if (ts.isMethodDeclaration(inner)) {
        return factory.updateMethodDeclaration(inner, modifiers, undefined, inner.name, inner.questionToken, typeParameters, parameters, type, wrap(body));
      }
      if (ts.isConstructorDeclaration(inner)) {
        const isDerived = inner.parent?.heritageClauses?.some(({ token }) => token === ts.SyntaxKind.ExtendsKeyword) ?? false;
        return isDerived ? inner : factory.updateConstructorDeclaration(inner, modifiers, parameters, wrap(body));
      }
      if (ts.isGetAccessorDeclaration(inner)) return factory.updateGetAccessorDeclaration(inner, modifiers, inner.name, parameters, type, wrap(body));
      if (ts.isFunctionDeclaration(inner)) {
        return factory.updateFunctionDeclaration(inner, modifiers, undefined, inner.name, typeParameters, parameters, type, wrap(body));
      }
      if (ts.isArrowFunction(inner)) {
        return factory.updateArrowFunction(inner, modifiers, typeParameters, parameters, type, inner.equalsGreaterThanToken, wrap(body));
      }
      return inner;
    };
    return ts.visitNode(source, visit);
  };
}
