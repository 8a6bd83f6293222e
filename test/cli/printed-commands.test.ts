// What the documents print is what people type: every printed `vkv` command runs in a clone and succeeds, every printed npm script,
// example and program is there. Words in capitals (FILE) stand for something of the reader's own.
// Slow: it starts every command that a document prints.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { text } from 'node:stream/consumers';

import test from 'ava';

import { WatchedWorld } from '../server/watched-world.js';
import { runVkv, serveOnce } from './run-vkv.js';

const root = path.resolve(__dirname, '..', '..');
const vkv = path.join(root, 'dist', 'cli', 'vkv.js');
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

// test/package runs build-kernels, with a stand-in for nvcc: the real one takes minutes.
const runnable = commands.filter(({ command: line }) => /^npx vkv (?!build-kernels)/.test(line) && !isPattern(line));
const isWatcher = (command: string): boolean => /^npx vkv top\b/.test(command);
const isServer = (command: string): boolean => command.startsWith('npx vkv serve ') && !command.includes('--help');

for (const { document, command } of runnable.filter((each) => isServer(each.command))) {
  test(`${document}: ${command} serves until it is told to end`, async (t) => {
    const { exitCode, stdout, models } = await serveOnce(command.split(' ').slice(3));
    t.is(exitCode, 0);
    t.regex(stdout, /^Listening at http:\/\/127\.0\.0\.1:\d+\/v1, without an API key$/m);
    t.deepEqual(models, ['storyteller']);
  });
}

for (const { document, command } of runnable.filter((each) => isWatcher(each.command))) {
  test(`${document}: ${command} shows a server, at the port that it has here`, async (t) => {
    const world = new WatchedWorld();
    const url = await world.server.listen({ port: 0 });
    const child = spawn(vkv, [...command.split(' ').slice(2), url], { stdio: ['ignore', 'pipe', 'inherit'], env: { ...process.env, NO_COLOR: '1' } });
    const [output, [exitCode]] = await Promise.all([text(child.stdout), once(child, 'close')]) as [string, [number]];
    t.is(exitCode, 0);
    t.regex(output, /^storyteller /);
    await world.close();
  });
}

for (const { document, command } of runnable.filter((each) => !isServer(each.command) && !isWatcher(each.command))) {
  test(`${document}: ${command}`, async (t) => {
    const clone = mkdtempSync(path.join(tmpdir(), 'vkv-clone-')); // so that reports are written elsewhere
    t.teardown(() => rmSync(clone, { recursive: true }));
    for (const entry of ['examples', 'docs', 'test']) symlinkSync(path.join(root, entry), path.join(clone, entry));
    const { exitCode, stderr } = await runVkv(command.split(' ').slice(2), {}, clone);
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
    const installed = /node_modules\/virtual-kv\/(examples\/[^\s']+)/.exec(command)?.[1];
    if (installed !== undefined && !isPattern(installed)) t.true(existsSync(path.join(root, installed)), `${document}: ${command}`);
    const program = /(?:^|&& |=\S+ )node (?!-)(\S+)/.exec(command)?.[1];
    if (program !== undefined && !isPattern(program)) t.true(existsSync(path.join(root, sourceOf(program))), `${document}: ${command}`);
  }
});

/** What a built program is made of. */
function sourceOf(program: string): string {
  return program.replace(/^build-test\/(.*)\.js$/, 'test/$1.ts').replace(/^build-examples\/(.*)\.js$/, 'examples/$1.ts').replace(/^dist\/(.*)\.js$/, 'lib/$1.ts');
}
