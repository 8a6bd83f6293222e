// OddRedis: what speaks to clients as a Redis does, and answers some commands as its test says: by bytes that a Redis
// would never send. To all others it answers as an empty store. It ends with its test.

import { once } from 'node:events';
import { createServer, type AddressInfo, type Server } from 'node:net';

import type { ExecutionContext } from 'ava';

/** Answers of an empty store, by command. */
const ordinary: Readonly<Partial<Record<string, string>>> = {
  INFO: bulk('redis_version:7.0.15\r\nloading:0\r\ncluster_enabled:0\r\n'),
  GETRANGE: '$0\r\n\r\n', EXISTS: ':0\r\n', EXPIRE: ':0\r\n', UNLINK: ':0\r\n',
};

export function bulk(text: string): string {
  return `$${text.length}\r\n${text}\r\n`;
}

export class OddRedis {
  readonly #server: Server;
  /** What it answers, by command in capitals; of a function, what that returns for the command's arguments. */
  answers: Partial<Record<string, string | ((words: readonly string[]) => string)>> = {};
  /** Connections that were made. */
  connections = 0;

  private constructor() {
    this.#server = createServer((socket) => {
      this.connections += 1;
      let unread = '';
      socket.on('error', () => {}).on('data', (data) => {
        unread += data.toString('latin1');
        for (;;) {
          const command = readCommand(unread);
          if (command === undefined) return;
          unread = unread.slice(command.length);
          socket.write(this.#answer(command.words), 'latin1');
        }
      });
    });
  }

  static async start(t: ExecutionContext): Promise<OddRedis> {
    const odd = new OddRedis();
    odd.#server.listen(0, '127.0.0.1');
    await once(odd.#server, 'listening');
    t.teardown(() => {
      odd.#server.close();
    });
    return odd;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  #answer(words: readonly string[]): string {
    const name = words[0]!.toUpperCase();
    const stored = name === 'SET' && words.includes('XX') ? '$-1\r\n' : '+OK\r\n';
    const answer = this.answers[name] ?? ordinary[name] ?? stored;
    return typeof answer === 'string' ? answer : answer(words);
  }
}

/** The first command of what came; undefined where it is not whole. */
function readCommand(unread: string): { readonly words: readonly string[]; readonly length: number } | undefined {
  const head = /^\*(\d+)\r\n/.exec(unread);
  if (head === null) return undefined;
  const words: string[] = [];
  let at = head[0].length;
  for (let left = Number(head[1]); left > 0; left -= 1) {
    const end = unread.indexOf('\r\n', at);
    const length = Number(unread.slice(at + 1, end));
    if (end < 0 || unread.length < end + 2 + length + 2) return undefined;
    words.push(unread.slice(end + 2, end + 2 + length));
    at = end + 2 + length + 2;
  }
  return { words, length: at };
}
