// The alphabetical list of docs/api.md: every exported name, from the declarations in dist/, with a link to the section that has it.
//
//   npm run docs:names         writes it
//   node scripts/api-names.mjs --print   prints the document as it would be, for the test

import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { root } from './prepare.mjs';

const document = path.join(root, 'docs', 'api.md');
const subpaths = ['', 'testing', 'llama', 'onnx', 'transformers', 'server', 'prometheus'];
const marks = { begin: '<!-- names -->\n', end: '<!-- /names -->\n' };

/** The names that a file of declarations exports: lists, and what is declared in place. */
export function exportsOf(declarations) {
  const lists = [...declarations.matchAll(/^export (?:type )?\{([^}]*)\}/gm)]
    .flatMap(([, list]) => list.split(',').map((each) => each.trim().replace(/^type /, '').replace(/^.* as /, '')));
  const own = [...declarations.matchAll(/^export (?:declare )?(?:abstract )?(?:class|function|const|interface|type) (\w+)/gm)].map(([, name]) => name);
  return [...new Set([...lists, ...own])].filter((name) => name !== '');
}

/** Headings with their anchors, as GitHub makes them, and their text. */
function sectionsOf(text) {
  return text.split(/^(?=#+ )/m).map((section) => {
    const [, heading = '', body = ''] = /^#+ (.*)\n([^]*)$/.exec(section) ?? [];
    return { heading, body, anchor: heading.toLowerCase().replace(/[^\w\- ]/g, '').replaceAll(' ', '-') };
  });
}

/** The anchor of the section whose heading has the name, or else of the one that calls it, or shows it as code, most often. */
function anchorOf(name, sections) {
  const word = new RegExp(`\\b${name}\\b`);
  const named = sections.find(({ heading }) => word.test(heading));
  if (named !== undefined) return named.anchor;
  for (const pattern of [`\\b${name}\\(`, `\`[^\`\n]*\\b${name}\\b[^\`\n]*\``]) {
    const counts = sections.map(({ body }) => body.match(new RegExp(pattern, 'g'))?.length ?? 0);
    const most = Math.max(...counts.slice(1)); // the first is the introduction
    if (most > 0) return sections[counts.indexOf(most, 1)].anchor;
  }
  return undefined;
}

export function withNames(text) {
  const [before, rest] = text.split(marks.begin);
  const after = rest.split(marks.end)[1];
  const sections = sectionsOf(before);
  const names = subpaths.flatMap((subpath) => {
    const file = subpath === '' ? 'index' : subpath === 'testing' ? 'testing' : `${subpath}/index`;
    return exportsOf(readFileSync(path.join(root, 'dist', `${file}.d.ts`), 'utf8')).map((name) => ({ name, subpath }));
  });
  names.sort((a, b) => a.name.localeCompare(b.name, 'en') || a.subpath.localeCompare(b.subpath, 'en'));
  const byLetter = groupBy(names);
  const lines = [...byLetter].map(([letter, members]) => `**${letter}** ${members.map(({ name, subpath }) => {
    const anchor = anchorOf(name, sections);
    return `${anchor === undefined ? `\`${name}\`` : `[\`${name}\`](#${anchor})`}${subpath === '' ? '' : ` (${subpath})`}`;
  }).join(' · ')}\n`);
  return `${before}${marks.begin}\n${lines.join('\n')}\n${marks.end}${after}`;
}

function groupBy(names) {
  const byLetter = new Map();
  for (const each of names) {
    const letter = each.name[0].toUpperCase();
    if (!byLetter.has(letter)) byLetter.set(letter, []);
    byLetter.get(letter).push(each);
  }
  return byLetter;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const text = withNames(readFileSync(document, 'utf8'));
  if (process.argv[2] === '--print') process.stdout.write(text);
  else writeFileSync(document, text);
}
