// What the documents print is what people type: every printed `vkv` command runs in a clone and succeeds, every printed npm script,
// example and program is there. Words in capitals (FILE) stand for something of the reader's own.

import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';

import test from 'ava';

import { runVkv } from './run-vkv.js';

const root = path.resolve(__dirname, '..', '..');
const documents = [
  'README.md', ...readdirSync(path.join(root, 'docs')).filter((file) => file.endsWith('.md')).map((file) => `docs/${file}`),
  ...readdirSync(path.join(root, 'examples'), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('README.md') && !file.includes('node_modules')).map((file) => `examples/${file}`),
];

/** Lines of the shell blocks of a document and commands between backticks in its text, without their comments. */
function commandsOf(document: string): string[] {
  const text = readFileSync(path.join(root, document), 'utf8');
  const blocks = [...text.matchAll(/^```sh\n(.*?)^```/gms)].flatMap(([, block]) => block!.replace(/\\\n\s*/g, '').split('\n'));
  const inline = [...text.replace(/^```.*?^```/gms, '').matchAll(/`((?:npx|npm|node) [^`]+)`/g)].map((match) => match[1]!.replace(/\s+/g, ' '));
  return [...blocks, ...inline].map((line) => line.replace(/ +#.*$/, '').trim()).filter((line) => line !== '');
}

const commands = documents.flatMap((document) => commandsOf(document).map((command) => ({ document, command })));
/** With something of the reader's own in them: a word in capitals, an ellipsis, a choice. */
const isPattern = (command: string): boolean => /\b[A-Z]{2,}\b|…|\|/.test(command.replace(/"[^"]*"|[A-Z_]+=\S+|\d[A-Za-z]+/g, ''));

test('the documents have commands to check', (t) => {
  t.true(commands.filter(({ command }) => command.startsWith('npx vkv')).length >= 6);
});

for (const { document, command } of commands.filter(({ command: line }) => /^npx vkv /.test(line) && !isPattern(line))) {
  test(`${document}: ${command}`, (t) => {
    const clone = mkdtempSync(path.join(tmpdir(), 'vkv-clone-')); // so that reports are written elsewhere
    t.teardown(() => rmSync(clone, { recursive: true }));
    for (const entry of ['examples', 'docs', 'test']) symlinkSync(path.join(root, entry), path.join(clone, entry));
    const { exitCode, stderr } = runVkv(command.split(' ').slice(2), {}, clone);
    t.is(exitCode, 0, stderr);
    const report = /--report (\S+)/.exec(command)?.[1];
    if (report !== undefined) t.true(existsSync(path.join(clone, report)));
  });
}

test('every npm script, example and program that a document prints exists', (t) => {
  const { scripts } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as { scripts: Record<string, string> };
  for (const { document, command } of commands) {
    const script = /^npm run (\S+)/.exec(command)?.[1] ?? /^npm (start|test)\b/.exec(command)?.[1];
    if (script !== undefined) t.true(script in scripts, `${document}: ${command}`);
    const example = /^npm run example -- ([a-z][\w-]*)/.exec(command)?.[1];
    if (example !== undefined) {
      t.true(['ts', 'mjs'].some((type) => existsSync(path.join(root, 'examples', `${example}.${type}`))), `${document}: ${command}`);
    }
    const program = /(?:^|&& |=\S+ )node (?!-)(\S+)/.exec(command)?.[1];
    if (program !== undefined && !isPattern(program)) t.true(existsSync(path.join(root, sourceOf(program))), `${document}: ${command}`);
  }
});

/** What a built program is made of. */
function sourceOf(program: string): string {
  return program.replace(/^build-test\/(.*)\.js$/, 'test/$1.ts').replace(/^build-examples\/(.*)\.js$/, 'examples/$1.ts').replace(/^dist\/(.*)\.js$/, 'lib/$1.ts');
}
