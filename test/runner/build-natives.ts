// `node build-natives.js [NAME]`: compiles the small native programs and libraries of the tests, before any test is timed: all that are
// missing, as many at once as there are processors, or the one that is named.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { availableParallelism } from 'node:os';

import { buildFakeLibcuda } from '../helpers/fake-libcuda.js';
import { compiledProbe, hasCompiler, probeNames, type ProbeName } from '../helpers/native-probe.js';

const libraries = 'libraries';

async function buildAll(): Promise<void> {
  const names: string[] = hasCompiler ? [libraries, ...probeNames()] : [];
  const work = async (): Promise<void> => {
    for (let name = names.shift(); name !== undefined; name = names.shift()) {
      const [code] = await once(spawn(process.execPath, [__filename, name], { stdio: 'inherit' }), 'exit') as [number | null];
      if (code !== 0) process.exitCode = 1;
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, work));
}

const [name] = process.argv.slice(2);
if (name === undefined) void buildAll();
else if (name === libraries) buildFakeLibcuda();
else compiledProbe(name as ProbeName);
