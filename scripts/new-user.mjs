// Does what a new user does, in an empty folder, and prints what each step took: installs the packed package, runs the README's fifteen
// lines and commands, serves the model that comes with it, asks it with the `openai` client as docs/serve.md prints it, looks at the live page and `vkv top`, ends the server.
// Needs Node.js and npm, and nothing else. `npm run test:package` runs it in a root that has nothing else.
//   node scripts/new-user.mjs TARBALL [flags of npm install, such as --offline --cache FOLDER]
// Exit code 0: every step did what its document says.

import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

const [tarball, ...npmFlags] = process.argv.slice(2);
if (tarball === undefined) {
  console.error('Usage: node scripts/new-user.mjs TARBALL [flags of npm install]');
  process.exit(2);
}
const folder = mkdtempSync(path.join(tmpdir(), 'virtual-kv-user-'));
const installed = path.join(folder, 'node_modules', 'virtual-kv');
const environment = { ...process.env, npm_config_update_notifier: 'false', NO_COLOR: '1', VKV_API_KEY: '' };

function run(command, args) {
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd: folder, encoding: 'utf8', env: environment });
  if (status !== 0) throw new Error(`${command} ${args.join(' ')}: ${error?.message ?? `exit ${status}`}\n${stdout}${stderr}`);
  return stdout;
}

const install = (...packages) => run('npm', ['install', '--no-audit', '--no-fund', ...npmFlags, ...packages]);

/** The first block of a language below a heading of an installed document. */
function blockOf(document, language, heading = '') {
  const text = readFileSync(path.join(installed, document), 'utf8');
  const found = new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, 'ms').exec(text.slice(Math.max(0, text.indexOf(heading))));
  if (found === null) throw new Error(`${document} has no block of ${language}`);
  return found[1];
}

/** The last line that a program printed. */
const last = (text) => text.trim().split('\n').at(-1).slice(0, 100);

async function step(title, body) {
  const startMs = performance.now();
  const said = await body();
  console.log(`${((performance.now() - startMs) / 1e3).toFixed(1).padStart(6)} s  ${title}${said ? `: ${said}` : ''}`);
}

/** Starts the server; resolves with its address when it listens. */
function serve(child) {
  return new Promise((resolve, reject) => {
    let output = '';
    const read = (chunk) => {
      output += chunk;
      const url = /Listening at (\S+)\/v1/.exec(output)?.[1];
      if (url !== undefined) resolve(url);
    };
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', read);
    child.once('error', reject);
    child.once('exit', (code) => { reject(new Error(`vkv serve ended with ${code}: ${output}`)); });
  });
}

async function lookAtPage(url) {
  const page = await fetch(`${url}/watch`);
  const html = await page.text();
  const files = [...html.matchAll(/(?:src|href)="(watch\/[^"]+)"/g)].map(([, file]) => file);
  for (const file of files) if (!(await fetch(`${url}/${file}`)).ok) throw new Error(`the page has no ${file}`);
  const { totals, cache } = await (await fetch(`${url}/watch/state`)).json();
  if (page.status !== 200 || files.length < 2 || totals.completedRequests < 1 || cache.pool.mappedPages < 1) throw new Error('the page does not show what was served');
  return `${totals.completedRequests} answered, ${cache.pool.mappedPages} pages mapped`;
}

let server;
const startMs = performance.now();
try {
  writeFileSync(path.join(folder, 'package.json'), '{ "type": "module" }');
  await step('npm install virtual-kv', () => last(install(path.resolve(tarball))));
  await step("the README's fifteen lines", () => {
    writeFileSync(path.join(folder, 'fifteen.js'), blockOf('README.md', 'js', '## Fifteen lines'));
    return last(run(process.execPath, ['fifteen.js']));
  });
  // A report needs packages of its own.
  const commands = blockOf('README.md', 'sh', '## Commands').split('\n').map((line) => line.replace(/ +#.*$/, ''));
  for (const command of commands.filter((line) => line.startsWith('npx vkv ') && !line.includes('--report'))) {
    await step(command, () => last(run('sh', ['-c', command])));
  }
  await step('npm install what serving needs, and openai', () => {
    const printed = /^npm install virtual-kv (.*)$/m.exec(readFileSync(path.join(installed, 'docs', 'serve.md'), 'utf8'))[1];
    return last(install(...printed.split(' '), 'openai'));
  });
  let url = '';
  await step('npx vkv serve', async () => {
    const vkv = path.join(folder, 'node_modules', '.bin', 'vkv');
    server = spawn(process.execPath, [vkv, 'serve', '--model', 'storyteller', '--port', '0'], { cwd: folder, env: environment, stdio: ['ignore', 'pipe', 'pipe'] });
    url = await serve(server);
    return url;
  });
  await step('the client of docs/serve.md', () => {
    writeFileSync(path.join(folder, 'client.js'), blockOf('docs/serve.md', 'js').replace('http://127.0.0.1:8000', url));
    const story = run(process.execPath, ['client.js']);
    if (story.length < 40) throw new Error(`it answered ${JSON.stringify(story)}`);
    return `${story.length} characters, ${JSON.stringify(story.slice(0, 50))} …`;
  });
  await step('the live page', () => lookAtPage(url));
  await step('npx vkv top', () => run(process.execPath, [path.join(folder, 'node_modules', '.bin', 'vkv'), 'top', url]).split('\n').find((line) => line.startsWith('cache')));
  await step('Ctrl-C', () => new Promise((resolve, reject) => {
    server.removeAllListeners('exit');
    server.once('exit', (code) => { if (code === 0) resolve('ended with 0'); else reject(new Error(`vkv serve ended with ${code}`)); });
    server.kill('SIGINT');
  }));
  console.log(`${((performance.now() - startMs) / 1e3).toFixed(1).padStart(6)} s  in all`);
} catch (error) {
  console.error(`virtual-kv: ${error.message}`);
  process.exitCode = 1;
} finally {
  server?.kill('SIGKILL');
  if (existsSync(folder)) rmSync(folder, { recursive: true, force: true });
}
