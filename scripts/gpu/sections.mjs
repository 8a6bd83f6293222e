// Sections: programs that are run one after another or beside each other, each in processes of its own and for so many seconds at
// most, so that none stops the others. What they print is shown, and kept in a file.

import { spawn } from 'node:child_process';
import { appendFileSync, writeFileSync } from 'node:fs';
import { clearTimeout, setTimeout } from 'node:timers';

const termMs = 3000;
const mostKept = 2 ** 20;

export class Sections {
  #endMs;
  #log;
  #print;
  #ended = [];

  /** All of them end `seconds` from now. The file `log` gets all that is printed. */
  constructor({ seconds, log, print = (text) => process.stdout.write(text) }) {
    this.#endMs = performance.now() + seconds * 1e3;
    this.#log = log;
    this.#print = print;
    writeFileSync(log, '');
  }

  say(text) {
    this.#print(text);
    appendFileSync(this.#log, text);
  }

  /** Runs one section and shows it, while it runs or, `beside` others, when it is over. Resolves to { passed, output }. */
  async run({ title, seconds, command, env = {}, beside = false }) {
    const begin = performance.now();
    const heading = `\n== ${title}\n`;
    if (!beside) this.say(heading);
    const show = beside ? () => {} : (text) => this.say(text);
    const { verdict, output } = await runFor(Math.min(seconds * 1e3, this.#endMs - begin - termMs), command, env, show);
    const line = `${verdict === undefined ? 'passed' : `FAILED (${verdict})`}  ${title}, ${((performance.now() - begin) / 1e3).toFixed(1)} s`;
    if (beside) this.say(heading + output);
    this.say(`   ${line}\n`);
    this.#ended.push({ line, passed: verdict === undefined });
    return { passed: verdict === undefined, output };
  }

  /** Says how all of them ended; whether all passed. */
  conclude() {
    const failed = this.#ended.filter(({ passed }) => !passed).length;
    this.say(`\n${this.#ended.map(({ line }) => line).join('\n')}\n\n${this.#ended.length - failed} passed, ${failed} failed\n`);
    return failed === 0;
  }
}

/** What a command printed, and why it did not pass, if so. Whatever it started ends with it. */
function runFor(ms, [program, ...args], env, show) {
  if (ms <= 0) return { verdict: 'there was no time left', output: '' };
  return new Promise((resolve) => {
    const child = spawn(program, args, { detached: true, stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
    let output = '';
    let isLate = false;
    const take = (text) => {
      show(text);
      output = (output + text).slice(-mostKept);
    };
    const kill = (signal) => {
      try {
        process.kill(-child.pid, signal);
      } catch {
        // it has ended
      }
    };
    const timers = [setTimeout(() => { isLate = true; kill('SIGTERM'); }, ms), setTimeout(() => kill('SIGKILL'), ms + termMs)];
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', take);
    child.on('error', (error) => resolve({ verdict: error.message, output }));
    child.on('close', (code, signal) => {
      for (const timer of timers) clearTimeout(timer);
      kill('SIGKILL');
      const how = signal ?? `exit code ${code}`;
      resolve({ verdict: isLate ? 'it ran out of time' : code === 0 ? undefined : how, output });
    });
  });
}
