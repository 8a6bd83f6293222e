// Connections: those that are open, and how many of them: a signal for each that is aborted when its client leaves,
// which ends all requests that came through it, those that are pipelined behind another too; the end of those whose
// client does not read its answer, asks nothing more, or still sends a request that is refused; and room for others
// where one address has too many, by those of it that ask nothing.

import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import { isIPv6, type Socket } from 'node:net';

/** How long a client may go on sending after its request was refused. */
const lingerMs = 1_000;

export interface ConnectionsOptions {
  /**
   * Ms without traffic after which one that reads or asks nothing is closed. Node closes those between requests
   * (`keepAliveTimeout`).
   */
  readonly stallTimeoutMs: number;
  /** At a time. */
  readonly most: number;
  /** From one address; of IPv6 from one network of 64 bits. */
  readonly mostPerAddress: number;
  /** Says why to a client for whom there is no room. */
  readonly onFull: (socket: Socket) => void;
}

interface Connection {
  readonly address: string;
  readonly controller: AbortController;
  /** Answers that are not whole. */
  readonly responses: Set<ServerResponse>;
  hasAsked: boolean;
}

export class Connections {
  /** In the order in which they were last in use. */
  readonly #open = new Map<Socket, Connection>();
  readonly #counts = new Map<string, number>();

  constructor(server: Server, { stallTimeoutMs, most, mostPerAddress, onFull }: ConnectionsOptions) {
    server.on('connection', (socket: Socket) => {
      const address = networkOf(socket.remoteAddress ?? '');
      const isFull = this.#open.size >= most || (this.#counts.get(address) ?? 0) >= mostPerAddress;
      const hasRoom = !isFull
        || this.#closeIdle((this.#counts.get(address) ?? 0) >= mostPerAddress ? address : this.#busiest());
      this.#enter(socket, address);
      if (!hasRoom) onFull(socket);
    });
    server.on('request', ({ socket }: { readonly socket: Socket }, response: ServerResponse) => {
      const connection = this.#open.get(socket);
      if (connection === undefined) return;
      connection.hasAsked = true;
      connection.responses.add(response);
      response.once('close', () => {
        connection.responses.delete(response);
        if (this.#open.delete(socket)) this.#open.set(socket, connection); // the last in use
      });
    });
    // A client that waits for its answer has nothing to read.
    server.setTimeout(stallTimeoutMs, (socket: Socket) => {
      if (socket.writableLength > 0 || (this.#open.get(socket)?.responses.size ?? 0) === 0) socket.destroy();
    });
  }

  /** Connections that are open. */
  get count(): number {
    return this.#open.size;
  }

  /** Aborted when the connection is closed. */
  signalOf(socket: Socket): AbortSignal {
    return this.#open.get(socket)?.controller.signal ?? AbortSignal.abort();
  }

  /** Whether nothing of an answer is under way on it, so that another text may be written. */
  isSilent(socket: Socket): boolean {
    return socket.writable && ![...this.#open.get(socket)?.responses ?? []].some(({ headersSent }) => headersSent);
  }

  /**
   * Discards what is left of a request that is answered before it was read, for a while: a connection that is closed with bytes unread is
   * reset, and then the client loses the answer.
   */
  discardRest(incoming: IncomingMessage): void {
    const { socket } = incoming;
    incoming.resume();
    socket.destroySoon = () => { endSlowly(socket); }; // called by Node once the answer is written
  }

  /** Closes those that wait for no answer, also those that have never asked, which Node takes for busy. */
  closeIdle(): void {
    for (const [socket, { responses }] of this.#open) if (responses.size === 0) socket.destroy();
  }

  #enter(socket: Socket, address: string): void {
    const connection = {
      address, controller: new AbortController(), responses: new Set<ServerResponse>(), hasAsked: false,
    };
    this.#open.set(socket, connection);
    this.#counts.set(address, (this.#counts.get(address) ?? 0) + 1);
    socket.once('close', () => {
      this.#leave(socket);
      connection.controller.abort();
    });
  }

  #leave(socket: Socket): void {
    const connection = this.#open.get(socket);
    if (connection === undefined) return;
    this.#open.delete(socket);
    const left = this.#counts.get(connection.address)! - 1;
    if (left > 0) this.#counts.set(connection.address, left);
    else this.#counts.delete(connection.address);
  }

  #busiest(): string {
    let [busiest, most] = ['', 0];
    for (const [address, count] of this.#counts) if (count > most) [busiest, most] = [address, count];
    return busiest;
  }

  /**
   * Closes one from this address that has asked nothing yet, else the one that has asked nothing for longest. Returns
   * whether there was one.
   */
  #closeIdle(address: string): boolean {
    let idle: Socket | undefined;
    for (const [socket, { address: from, responses, hasAsked }] of this.#open) {
      if (from !== address || responses.size > 0) continue;
      if (!hasAsked) {
        idle = socket;
        break;
      }
      idle ??= socket;
    }
    if (idle === undefined) return false;
    this.#leave(idle);
    idle.destroy();
    return true;
  }
}

/** Ends a connection once its client does, or after a while; what it sends until then is discarded. */
export function endSlowly(socket: Socket, lastWords = ''): void {
  socket.end(lastWords);
  const timer = setTimeout(() => { socket.destroy(); }, lingerMs);
  socket.once('close', () => { clearTimeout(timer); });
}

/** An address of IPv4; of IPv6 the network of 64 bits, of which one client has all addresses. */
function networkOf(address: string): string {
  if (!isIPv6(address) || address.startsWith('::ffff:')) return address.replace('::ffff:', '');
  const [head = '', tail] = address.split('::');
  const groups = head === '' ? [] : head.split(':');
  const behind = tail === undefined || tail === '' ? [] : tail.split(':');
  while (groups.length + behind.length < 8) groups.push('0');
  return [...groups, ...behind].slice(0, 4).join(':');
}
