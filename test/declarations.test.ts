// The declarations that are shipped are for older compilers too: what a newer one infers and writes out may not be known there.
// `npm run test:package` compiles against them with the oldest and the newest that are promised.

import { readdirSync, readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';
import ts from 'typescript';
import { slow } from './runner/slow.js';

const dist = path.resolve(__dirname, '..', 'dist');
const declarations = readdirSync(dist, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.d.ts'));

test('no declaration has what TypeScript 5.2 does not know', (t) => {
  t.true(declarations.length > 50);
  // Generic typed arrays and ArrayBufferLike as an argument came with 5.7 and 5.9, NoInfer with 5.4.
  const newer = /\b(?:Big)?(?:Int|Uint|Float)\w*Array<|\bArrayBufferView<|\bNoInfer</;
  t.deepEqual(declarations.filter((file) => newer.test(readFileSync(path.join(dist, file), 'utf8'))), []);
});

slow('reads every declaration')('everything that is exported, and each of its members, has a docstring', (t) => {
  const entries = ['index', 'testing', 'prometheus/index', 'llama/index', 'onnx/index', 'transformers/index', 'server/index'].map((name) => path.join(dist, `${name}.d.ts`));
  const program = ts.createProgram(entries, {
    module: ts.ModuleKind.Node16, moduleResolution: ts.ModuleResolutionKind.Node16, types: ['node'],
    lib: ['lib.es2023.d.ts', 'lib.esnext.disposable.d.ts'],
  });
  const checker = program.getTypeChecker();
  const isDocumented = (symbol: ts.Symbol | undefined): boolean => (symbol?.getDocumentationComment(checker).length ?? 1) > 0;
  const seen = new Set<ts.Symbol>();
  const lacking: string[] = [];
  for (const entry of entries) {
    for (const exported of checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(entry)!)!)) {
      const symbol = exported.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(exported) : exported;
      if (seen.has(symbol)) continue;
      seen.add(symbol);
      if (!isDocumented(symbol)) lacking.push(symbol.name);
      if (symbol.name === 'ErrorDetails') continue; // docs/errors.md has them, and a test of its own
      for (const declaration of symbol.declarations ?? []) {
        if (!ts.isClassDeclaration(declaration) && !ts.isInterfaceDeclaration(declaration)) continue;
        for (const { name } of declaration.members) {
          if (name === undefined || !ts.isIdentifier(name)) continue;
          if (!isDocumented(checker.getSymbolAtLocation(name))) lacking.push(`${symbol.name}.${name.text}`);
        }
      }
    }
  }
  t.true(seen.size > 100);
  t.deepEqual(lacking, []);
});
