// Chromium: a real browser without a window, steered over a pipe by its DevTools protocol. One page; errors and what its security policy
// refused are collected. It asks nothing of the network but of this machine.

import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import type { Readable, Writable } from 'node:stream';

type Json = Record<string, unknown>;

interface Waiting {
  readonly resolve: (result: Json) => void;
  readonly reject: (error: Error) => void;
}

/** How long the browser may take for one answer. */
const longestAnswerMs = 60_000;

/** The browser itself has ended, crashed or does not answer any more: that says nothing of the page. */
export class BrowserLost extends Error {}

/** The program, or undefined where there is none. */
export const chromium = ['chromium', 'chromium-browser', 'google-chrome'].find((name) => spawnSync(name, ['--version']).status === 0);

export interface View {
  readonly width: number;
  readonly height: number;
  readonly scheme: 'light' | 'dark';
  readonly isPhone?: boolean;
}

export class Chromium {
  /** Exceptions of the page, and messages of its console that are errors. */
  readonly errors: string[] = [];
  /** Addresses that the page asked for. */
  readonly requests: string[] = [];
  readonly #folder = mkdtempSync(path.join(tmpdir(), 'vkv-chromium-'));
  readonly #child: ChildProcess;
  readonly #input: Writable;
  readonly #waiting = new Map<number, Waiting>();
  #lost: BrowserLost | undefined;
  #session: string | undefined;
  #id = 0;
  #text = '';

  private constructor() {
    this.#child = spawn(chromium!, [
      '--headless=new', '--remote-debugging-pipe', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--disable-sync',
      '--disable-background-networking', '--disable-component-update', '--disable-default-apps', '--hide-scrollbars', '--mute-audio',
      // The page is the only one, and draws also while the machine is busy: no other page in front of it, and none that is slowed down.
      '--no-startup-window', '--disable-background-timer-throttling', '--disable-backgrounding-occluded-windows', '--disable-renderer-backgrounding',
      '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1', `--user-data-dir=${this.#folder}`,
    ], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'], env: { ...process.env, LD_PRELOAD: '' } }); // no sanitizer's runtime in it
    this.#input = this.#child.stdio[3] as Writable;
    this.#input.on('error', () => {});
    (this.#child.stdio[4] as Readable).setEncoding('utf8').on('data', (chunk: string) => { this.#read(chunk); });
    this.#child.once('exit', (code, signal) => { this.#lose(`the browser has ended (${signal ?? `exit code ${code}`})`); });
    this.#child.once('error', ({ message }) => { this.#lose(message); });
  }

  static async open(): Promise<Chromium> {
    const browser = new Chromium();
    try {
      await browser.#attach();
    } catch (error) {
      await browser.close();
      throw error;
    }
    return browser;
  }

  async #attach(): Promise<void> {
    const { targetId } = await this.#call('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await this.#call('Target.attachToTarget', { targetId, flatten: true });
    this.#session = sessionId as string;
    for (const domain of ['Inspector', 'Page', 'Runtime', 'Log', 'Network']) await this.#call(`${domain}.enable`, {});
    await this.#call('Emulation.setFocusEmulationEnabled', { enabled: true }); // a tap acts on a page in front only
  }

  /** Sets what the page is seen on. */
  async view({ width, height, scheme, isPhone = false }: View): Promise<void> {
    await this.#call('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: isPhone ? 2 : 1, mobile: isPhone });
    await this.#call('Emulation.setTouchEmulationEnabled', { enabled: isPhone });
    await this.#call('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
  }

  async go(url: string): Promise<void> {
    await this.#call('Page.navigate', { url });
  }

  /** Moves the pointer to a place of the screen, in CSS pixels. */
  async pointAt(x: number, y: number): Promise<void> {
    await this.#call('Input.dispatchMouseEvent', { type: 'mouseMoved', x, y });
  }

  /** Taps a place of the screen with a finger. */
  async tap(x: number, y: number): Promise<void> {
    await this.#call('Input.dispatchTouchEvent', { type: 'touchStart', touchPoints: [{ x, y }] });
    await this.#call('Input.dispatchTouchEvent', { type: 'touchEnd', touchPoints: [] });
  }

  /** The value of an expression of the page, which may be a promise. */
  async evaluate<T>(expression: string): Promise<T> {
    const { result, exceptionDetails } = await this.#call('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails !== undefined) throw new Error(`${expression}: ${JSON.stringify(exceptionDetails)}`);
    return (result as { readonly value: T }).value;
  }

  /** Resolves when the expression is true of the page. */
  async until(expression: string): Promise<void> {
    for (const endMs = Date.now() + 60_000; ;) {
      if (await this.evaluate<boolean>(`new Promise((done) => { const look = () => done(Boolean(${expression})); requestAnimationFrame(look); setTimeout(look, 1000); })`)) return;
      if (Date.now() > endMs) throw new Error(`the page never had: ${expression}; errors: ${this.errors.join('; ')}`);
    }
  }

  /** A picture of the whole page; written to VKV_SCREENSHOTS where that is a folder. */
  async screenshot(name: string): Promise<Buffer> {
    const { data } = await this.#call('Page.captureScreenshot', { format: 'png', captureBeyondViewport: true });
    const png = Buffer.from(data as string, 'base64');
    const folder = process.env['VKV_SCREENSHOTS'];
    if (folder !== undefined) writeFileSync(path.join(folder, `${name}.png`), png);
    return png;
  }

  async close(): Promise<void> {
    if (this.#child.pid !== undefined && this.#child.exitCode === null && this.#child.signalCode === null) {
      const ended = once(this.#child, 'exit');
      this.#call('Browser.close', {}, false).catch(() => {});
      const timer = setTimeout(() => { this.#child.kill('SIGKILL'); }, this.#lost === undefined ? 10_000 : 0);
      await ended;
      clearTimeout(timer);
    }
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 5 });
  }

  #call(method: string, params: Json, isOfPage = true): Promise<Json> {
    if (this.#lost !== undefined) return Promise.reject(this.#lost);
    const id = this.#id += 1;
    const session = isOfPage && this.#session !== undefined ? { sessionId: this.#session } : {};
    const message = JSON.stringify({ id, method, params, ...session });
    return new Promise<Json>((resolve, reject) => {
      const timer = setTimeout(() => { this.#lose(`the browser did not answer within ${longestAnswerMs / 1e3} s: ${message}`); }, longestAnswerMs);
      this.#waiting.set(id, {
        resolve: (result) => { clearTimeout(timer); resolve(result); },
        reject: (error) => { clearTimeout(timer); reject(error); },
      });
      this.#input.write(`${message}\0`);
    });
  }

  /** Fails what waits for the browser, and all that is asked of it from now on. */
  #lose(message: string): void {
    this.#lost ??= new BrowserLost(message);
    for (const { reject } of this.#waiting.values()) reject(this.#lost);
    this.#waiting.clear();
  }

  #read(chunk: string): void {
    this.#text += chunk;
    for (let end = this.#text.indexOf('\0'); end >= 0; end = this.#text.indexOf('\0')) {
      const message = JSON.parse(this.#text.slice(0, end)) as { id?: number; result?: Json; error?: { message: string }; method?: string; params?: Json };
      this.#text = this.#text.slice(end + 1);
      const { id, result, error, method, params } = message;
      if (id !== undefined) {
        const waiting = this.#waiting.get(id);
        this.#waiting.delete(id);
        if (error !== undefined) waiting?.reject(new Error(error.message));
        else waiting?.resolve(result ?? {});
      } else if (method === 'Inspector.targetCrashed') this.#lose('the page has crashed');
      else if (method === 'Runtime.exceptionThrown') this.errors.push(JSON.stringify(params));
      else if (method === 'Log.entryAdded' && (params as { entry: { level: string } }).entry.level === 'error') this.errors.push((params as { entry: { text: string } }).entry.text);
      else if (method === 'Network.requestWillBeSent') this.requests.push((params as { request: { url: string } }).request.url);
    }
  }
}
