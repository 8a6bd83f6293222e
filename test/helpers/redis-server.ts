// RedisServer: a real redis-server on a free port of loopback, with nothing kept on disk, and a cluster of three. They are killed when their
// test is over, also when it fails, and with this process, also when that is killed.

import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import * as path from 'node:path';
import { createInterface } from 'node:readline';

import type { ExecutionContext } from 'ava';
import { Redis } from 'iovalkey';

/** The server is not ours: no sanitizer's runtime. */
const { LD_PRELOAD: _ours, ...env } = process.env;

/** Whether redis-server is installed. */
export const hasRedis = spawnSync('redis-server', ['--version'], { env }).status === 0;

/** Runs redis-server and kills it when standard input ends: with this process, however that ends. */
const guarded = 'exec 3<&0; sh -c \'echo "pid $$"; exec redis-server "$@"\' sh "$@" </dev/null 3<&- & pid=$!; ' +
  '{ read -r _ <&3; kill -9 $pid; } >/dev/null 2>&1 & reader=$!; exec 3<&-; wait $pid; kill $reader 2>/dev/null';

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

export class RedisServer {
  readonly port: number;
  readonly #folder: string;
  readonly #options: readonly string[];
  #child: ChildProcess | undefined;
  #pid = 0;
  #client: Redis | undefined;

  private constructor(port: number, options: readonly string[]) {
    this.port = port;
    this.#options = options;
    this.#folder = mkdtempSync(path.join(tmpdir(), 'vkv-redis-'));
  }

  /** Starts one; it is killed when the test is over. `options` are those of redis-server: `--maxmemory`, `64mb`. */
  static async start(t: ExecutionContext | undefined, ...options: string[]): Promise<RedisServer> {
    for (let attempt = 1; ; attempt += 1) {
      const server = new RedisServer(await freePort(), options);
      t?.teardown(() => server.stop());
      try {
        await server.restart();
        return server;
      } catch (error) {
        await server.stop();
        if (attempt === 10) throw error; // another process took the port
      }
    }
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** A client of the test's own. */
  get client(): Redis {
    this.#client ??= new Redis({ port: this.port, host: '127.0.0.1', lazyConnect: true, retryStrategy: () => 20 }).on('error', () => {});
    return this.#client;
  }

  /** Starts it again on the same port, after `kill`. */
  async restart(): Promise<void> {
    const child = this.#child = spawn('sh', [
      '-c', guarded, 'sh',
      '--port', `${this.port}`, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--dir', this.#folder, '--protected-mode', 'no',
      ...this.#options,
    ], { stdio: ['pipe', 'pipe', 'ignore'], env });
    this.#pid = 0;
    const said: string[] = [];
    for await (const line of createInterface({ input: child.stdout! })) {
      this.#pid = Number(/^pid (\d+)$/.exec(line)?.[1] ?? this.#pid);
      if (line.includes('Ready to accept connections')) {
        child.stdout!.resume();
        return;
      }
      said.push(line);
    }
    throw new Error(`redis-server did not start: ${said.slice(-5).join('; ')}`);
  }

  /** As `kill -9`; resolves when it is gone. */
  async kill(): Promise<void> {
    const child = this.#child;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const exit = once(child, 'exit');
    if (this.#pid > 0) this.#send('SIGKILL'); // 0 would be this process and its siblings
    else child.stdin!.end();
    await exit;
  }

  /** Stops it where it stands (`SIGSTOP`), or lets it go on (`SIGCONT`). */
  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    if (this.#pid > 0) this.#send(signal);
  }

  /** It may have ended by itself while its shell has not. */
  #send(signal: NodeJS.Signals): void {
    try {
      process.kill(this.#pid, signal);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
  }

  async stop(): Promise<void> {
    this.#client?.disconnect();
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** Three masters with all slots between them. */
export async function startCluster(t: ExecutionContext): Promise<readonly RedisServer[]> {
  const nodes: RedisServer[] = [];
  for (let index = 0; index < 3; index += 1) {
    nodes.push(await RedisServer.start(t, '--cluster-enabled', 'yes', '--cluster-node-timeout', '2000', '--cluster-require-full-coverage', 'no'));
  }
  const ends = [0, 5_461, 10_923, 16_384];
  await Promise.all(nodes.map((node, index) => node.client.cluster('ADDSLOTSRANGE', ends[index]!, ends[index + 1]! - 1)));
  for (const [index, node] of nodes.entries()) await node.client.call('CLUSTER', 'SET-CONFIG-EPOCH', `${index + 1}`);
  for (const node of nodes.slice(1)) await nodes[0]!.client.cluster('MEET', '127.0.0.1', node.port);
  await Promise.all(nodes.map(async ({ client }) => {
    for (;;) {
      const info = await client.cluster('INFO') as string;
      if (info.includes('cluster_state:ok') && info.includes('cluster_known_nodes:3') && info.includes('cluster_slots_ok:16384')) return;
    }
  }));
  return nodes;
}
