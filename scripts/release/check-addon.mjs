// What an addon must be like to run wherever Node.js 20.17's own releases run: made for its machine, for C libraries since 2.28, with
// nothing of the C++ runtime outside, nothing exported but what Node.js looks up, and without debugging information.

import { execFileSync } from 'node:child_process';

const machines = { 'linux-x64': 'Advanced Micro Devices X86-64', 'linux-arm64': 'AArch64' };
const exported = ['napi_register_module_v1', 'node_api_module_get_api_version_v1'];
const libraries = /^(libc\.so\.6|libm\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux-(x86-64\.so\.2|aarch64\.so\.1))$/;
const NEWEST_GLIBC = [2, 28];

/** Returns what is wrong, a sentence each; none when it is fit. Needs binutils. */
export function checkAddon(file, platform) {
  const readelf = (...options) => execFileSync('readelf', ['--wide', ...options, file], { encoding: 'utf8' });
  const problems = [];
  const machine = /^ *Machine: +(.*)$/m.exec(readelf('--file-header'))?.[1];
  if (machine !== machines[platform]) problems.push(`It is made for ${machine}.`);

  for (const [, library] of readelf('--dynamic').matchAll(/\(NEEDED\).*\[(.*)\]/g)) {
    if (!libraries.test(library)) problems.push(`It needs ${library}.`);
  }
  const symbols = readelf('--dyn-syms').split('\n').map((line) => line.trim().split(/\s+/)).filter(([number, , , , bind]) => /^\d+:$/.test(number) && bind !== 'LOCAL');
  for (const [, , , , , , section, name = ''] of symbols) {
    const [, source, major, minor] = /@(\w+?)_(\d+)\.(\d+)/.exec(name) ?? [];
    if (section !== 'UND') {
      if (!exported.includes(name)) problems.push(`It exports ${name}.`);
    } else if (/^(GLIBCXX|CXXABI|GCC)$/.test(source ?? '') || source === 'GLIBC' && (+major - NEWEST_GLIBC[0] || +minor - NEWEST_GLIBC[1]) > 0) {
      problems.push(`It needs ${name}: name it in scripts/release/wrapped.txt and old_glibc.cc.`);
    }
  }
  for (const name of exported) if (!symbols.some(([, , , , , , section, own]) => section !== 'UND' && own === name)) problems.push(`It exports no ${name}.`);
  if (/ \.(debug_\w+|symtab) /.test(readelf('--sections'))) problems.push('It is not stripped.');
  return problems;
}
