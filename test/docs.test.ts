import { readdirSync, readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

const root = path.resolve(__dirname, '..');
const read = (file: string): string => readFileSync(path.join(root, file), 'utf8');

/** Public options interfaces and where they are; their fields must each stand once in the table of that name. */
const documented = {
  KvCacheOptions: 'lib/memory/kv-cache-options.ts',
  AcquireOptions: 'lib/memory/kv-cache-options.ts',
  WaitOptions: 'lib/memory/wait.ts',
  ReleaseOptions: 'lib/memory/fence.ts',
  PagePoolOptions: 'lib/memory/page-pool.ts',
  DriverOptions: 'lib/memory/driver.ts',
  LayoutOptions: 'lib/memory/layout.ts',
  ModelShape: 'lib/memory/model-shape.ts',
  MockDeviceOptions: 'lib/memory/mock-device.ts',
  KernelsOptions: 'lib/kernels/kernels-options.ts',
  SequenceSpans: 'lib/kernels/step-spans.ts',
  TokenCopy: 'lib/kernels/token-copies.ts',
  DenseKernelsOptions: 'lib/kernels/dense-options.ts',
  Product: 'lib/kernels/dense-kernels.ts',
  FailCallOptions: 'lib/memory/mock-device.ts',
} as const;

function fieldsOf(name: string, file: string): string[] {
  const source = read(file);
  const start = source.indexOf(`export interface ${name} {`);
  const body = source.slice(start, source.indexOf('\n}', start));
  return [...body.matchAll(/^ {2}readonly (\w+)\??:/gm)].map((match) => match[1]!);
}

function rowsOf(name: string): string[] {
  const section = read('docs/api.md').split(/^#+ /m).find((part) => part.startsWith(`${name}\n`)) ?? '';
  return [...section.matchAll(/^\| `(\w+)` \|/gm)].map((match) => match[1]!);
}

for (const [name, file] of Object.entries(documented)) {
  test(`docs/api.md has every option of ${name} once, and no other`, (t) => {
    const fields = fieldsOf(name, file);
    t.true(fields.length > 0);
    t.deepEqual(rowsOf(name).toSorted(), fields.toSorted());
  });
}

test('no document names a file that is not there', (t) => {
  const documents = ['README.md', 'CHANGELOG.md', ...readdirSync(path.join(root, 'docs')).map((name) => `docs/${name}`)];
  for (const document of documents.filter((name) => name.endsWith('.md'))) {
    for (const [, target] of read(document).matchAll(/\]\(([^)#:]+)(?:#[^)]*)?\)/g)) {
      t.notThrows(() => readFileSync(path.resolve(root, path.dirname(document), target!)), `${document} → ${target}`);
    }
  }
});

test('the code in the README is the example that runs', (t) => {
  const code = read('examples/quick-start.mjs').split('\n').filter((line) => !/^\/\/ /.test(line)).join('\n').trim();
  t.true(read('README.md').includes(code));
});
