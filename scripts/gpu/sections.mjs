// Sections: runs programs one after another or at the same time, each in processes of its own and with a limit in seconds, so that
// none stops the others. Prints their output, and writes it to a file.

import { spawn } from 'node:child_process';
import { appendFileSync, writeFileSync } from 'node:fs';
import { clearTimeout, setTimeout } from 'node:timers';

/** `now` in ms; `timer` calls `wake` after a delay, and returns what stops it. Tests have another. */
const systemClock = {
  now: () => performance.now(),
  timer: (wake, delayMs) => {
    const timer = setTimeout(wake, delayMs);
    return () => clearTimeout(timer);
  },
};

const termMs = 3000;
/** What a killed process and those that it started take to be gone; longer, and it is left behind. */
const goneMs = 1000;
const mostKept = 2 ** 20;

export class Sections {
  /** By which its seconds are counted. */
  clock;
  #endMs;
  #log;
  #print;
  #onEnd;
  #ended = [];

  /**
   * All of them end `seconds` from now. The file `log` gets all that is printed; `onEnd` gets { title, verdict, seconds } of each
   * section as it ends.
   */
  constructor({ seconds, log, print = (text) => process.stdout.write(text), onEnd = () => {}, clock = systemClock }) {
    this.clock = clock;
    this.#onEnd = onEnd;
    this.#endMs = clock.now() + seconds * 1e3;
    this.#log = log;
    this.#print = print;
    writeFileSync(log, '');
  }

  say(text) {
    this.#print(text);
    appendFileSync(this.#log, text);
  }

  /**
   * Runs one section and shows it, while it runs or, `beside` others, when it is over. Resolves to { passed, isLate, output };
   * `isLate`: its seconds were over before it ended.
   */
  async run({ title, seconds, command, env = {}, beside = false }) {
    const begin = this.clock.now();
    const heading = `\n== ${title}\n`;
    if (!beside) this.say(heading);
    const show = beside ? () => {} : (text) => this.say(text);
    const { failure, isLate = false, output } = await runFor(Math.min(seconds * 1e3, this.#endMs - begin - termMs - goneMs), command, { env, show, clock: this.clock });
    if (beside) this.say(heading + output);
    this.#end(title, failure === undefined ? 'passed' : `FAILED (${failure})`, (this.clock.now() - begin) / 1e3);
    return { passed: failure === undefined, isLate, output };
  }

  /** Notes a section that is not run. */
  skip(title, why) {
    this.#end(title, `skipped (${why})`, 0);
  }

  /** Says how all of them ended; whether none failed. */
  conclude() {
    const count = (start) => this.#ended.filter(({ verdict }) => verdict.startsWith(start)).length;
    const lines = this.#ended.map(({ line }) => line).join('\n');
    const skipped = count('skipped');
    this.say(`\n${lines}\n\n${count('passed')} passed, ${count('FAILED')} failed${skipped > 0 ? `, ${skipped} skipped` : ''}\n`);
    return count('FAILED') === 0;
  }

  #end(title, verdict, seconds) {
    const line = `${verdict}  ${title}, ${seconds.toFixed(1)} s`;
    this.say(`   ${line}\n`);
    this.#ended.push({ line, verdict });
    this.#onEnd({ title, verdict, seconds: Math.round(seconds * 10) / 10 });
  }
}

/**
 * Runs a command; resolves to { failure, isLate, output }: why it failed, if so, and whether that was for want of time. Ends the processes
 * that it started; one that is not in its group, or that cannot be killed while the device's driver holds it, is left behind.
 */
function runFor(ms, [program, ...args], { env, show, clock }) {
  if (ms <= 0) return { failure: 'there was no time left', isLate: true, output: '' };
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
    const leave = () => {
      for (const stream of [child.stdout, child.stderr]) stream.destroy();
      child.unref();
      resolve({ failure: 'it ran out of time, and could not be ended', isLate, output });
    };
    const stops = [
      clock.timer(() => { isLate = true; kill('SIGTERM'); }, ms), clock.timer(() => kill('SIGKILL'), ms + termMs), clock.timer(leave, ms + termMs + goneMs),
    ];
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', take);
    child.on('error', (error) => resolve({ failure: error.message, output }));
    child.on('close', (code, signal) => {
      for (const stop of stops) stop();
      kill('SIGKILL');
      const how = signal ?? `exit code ${code}`;
      resolve({ failure: isLate ? 'it ran out of time' : code === 0 ? undefined : how, isLate, output });
    });
  });
}
