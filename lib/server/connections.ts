// Connections: a signal for each that is aborted when its client leaves, which ends all requests that came through it, those that are
// pipelined behind another too; and the end of connections whose client does not read its answer, asks nothing more, or still sends a
// request that is refused.

import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/** How long a client may go on sending after its request was refused. */
const lingerMs = 1_000;

export class Connections {
  readonly #signals = new WeakMap<Socket, AbortController>();
  /** Requests that are not answered. */
  readonly #open = new WeakMap<Socket, number>();

  constructor(server: Server, stallTimeoutMs: number) {
    server.on('connection', (socket: Socket) => {
      this.#controllerOf(socket);
    });
    server.on('request', ({ socket }: { readonly socket: Socket }, response: ServerResponse) => {
      this.#open.set(socket, this.#openOf(socket) + 1);
      response.once('close', () => { this.#open.set(socket, this.#openOf(socket) - 1); });
    });
    // Without traffic for so long, or for Node's keep-alive time between requests. A client that waits for its answer has nothing to read.
    server.setTimeout(stallTimeoutMs, (socket: Socket) => {
      if (socket.writableLength > 0 || this.#openOf(socket) === 0) socket.destroy();
    });
  }

  /** Aborted when the connection is closed. */
  signalOf(socket: Socket): AbortSignal {
    return this.#controllerOf(socket).signal;
  }

  /**
   * Discards what is left of a request that is answered before it was read, for a while: a connection that is closed with bytes unread is
   * reset, and then the client loses the answer.
   */
  discardRest(incoming: IncomingMessage): void {
    const { socket } = incoming;
    incoming.resume();
    socket.destroySoon = () => { // called by Node once the answer is written
      socket.end();
      const timer = setTimeout(() => { socket.destroy(); }, lingerMs);
      socket.once('close', () => { clearTimeout(timer); });
    };
  }

  #openOf(socket: Socket): number {
    return this.#open.get(socket) ?? 0;
  }

  #controllerOf(socket: Socket): AbortController {
    const known = this.#signals.get(socket);
    if (known !== undefined) return known;
    const controller = new AbortController();
    this.#signals.set(socket, controller);
    if (socket.destroyed) controller.abort();
    else socket.once('close', () => { controller.abort(); });
    return controller;
  }
}
