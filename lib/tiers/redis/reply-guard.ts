// ReplyGuard: reads what a store answers before its client's parser does, which recurses once for each array within
// an array, and makes room for whatever length is announced. It passes RESP 2 within bounds and refuses the rest:
// then a guarded connection ends, by an error that says why, and nothing of the chunk is parsed. One guard reads one
// connection. What it passes may still be the wrong answer.

import type { Duplex } from 'node:stream';

import { formatNumber } from '../../base/format.js';

/** What replies may be. */
export interface ReplyLimits {
  /** Bytes of one reply, as it is sent, with all that it announces. Raised before more is asked for. */
  replyBytes: number;
}

/** Room for what a client asks for itself: `INFO`, and `CLUSTER SLOTS` where each slot is a range of its own. */
export const ordinaryReplyBytes = 2 ** 22;
/** Arrays within arrays; `CLUSTER SLOTS` has 4. */
const maxDepth = 8;
const maxLineBytes = 2 ** 16;
/** The shortest element there is, `+\r\n`. */
const elementBytes = 3;

export class ReplyGuard {
  readonly #limits: ReplyLimits;
  /** The line that is being read, without its end. */
  #line = '';
  /** Bytes of a string, with its end, that have not come yet. */
  #stringBytes = 0;
  /** Elements that each open array still lacks, the outermost first. */
  readonly #lacking: number[] = [];
  /** Of the reply that is being read: what came, and what was announced of strings. */
  #replyBytes = 0;
  #lackingElements = 0;

  constructor(limits: ReplyLimits) {
    this.#limits = limits;
  }

  /** Reads on. Throws at what must not be parsed; then it is not to be used again. */
  read(chunk: Uint8Array): void {
    const bytes = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    for (let at = 0; at < bytes.length;) {
      if (this.#stringBytes > 0) {
        const came = Math.min(this.#stringBytes, bytes.length - at);
        at += came;
        this.#stringBytes -= came;
        if (this.#stringBytes === 0) this.#endElement();
      } else {
        const end = bytes.indexOf(0x0a, at) + 1 || bytes.length;
        this.#readLine(bytes.toString('latin1', at, end));
        at = end;
      }
    }
  }

  #readLine(part: string): void {
    const line = this.#line + part;
    if (line.length > maxLineBytes) refuse(`a line of more than ${formatNumber(maxLineBytes)} bytes`);
    this.#line = part.endsWith('\n') ? '' : line; // of the part: asking the line would copy it each time
    if (this.#line !== '') return;
    // Parsers take the first CR for the end: they must see the same lines.
    if (line.indexOf('\r') !== line.length - 2) refuse('a line that does not end by CR LF');
    this.#take(line.length);
    const value = line.slice(1, -2);
    switch (line[0]) {
      case '+': case '-': return this.#endElement();
      case ':': return /^[+-]?\d{1,20}$/.test(value) ? this.#endElement() : refuse('an integer that is none');
      case '$': return this.#beginString(lengthOf(value));
      case '*': return this.#beginArray(lengthOf(value));
      default: refuse(`a type that RESP 2 does not have, ${JSON.stringify(line.slice(0, 1))}`);
    }
  }

  #beginString(length: number): void {
    if (length < 0) return this.#endElement();
    this.#stringBytes = length + 2;
    this.#take(this.#stringBytes);
  }

  #beginArray(length: number): void {
    if (length <= 0) return this.#endElement();
    if (this.#lacking.push(length) > maxDepth) refuse(`arrays nested more than ${maxDepth} deep`);
    this.#lackingElements += length;
    this.#take(0);
  }

  #take(bytes: number): void {
    this.#replyBytes += bytes;
    const announced = this.#replyBytes + elementBytes * this.#lackingElements;
    const { replyBytes } = this.#limits;
    if (announced <= replyBytes) return;
    refuse(`a reply of ${formatNumber(announced)} bytes or more where ${formatNumber(replyBytes)} are the most`);
  }

  #endElement(): void {
    while (this.#lacking.length > 0) {
      this.#lackingElements -= 1;
      const left = this.#lacking.pop()! - 1;
      if (left > 0) {
        this.#lacking.push(left);
        return;
      }
    }
    this.#replyBytes = 0;
  }
}

/** -1 where there is nothing. */
function lengthOf(digits: string): number {
  return /^(-1|\d{1,10})$/.test(digits) ? Number(digits) : refuse('a length that is none');
}

/** The word "Protocol error" is what clients' own parsers begin with. */
function refuse(what: string): never {
  throw new Error(`Protocol error: the store sent ${what}`);
}

/** A socket that ends by an error where it brings what must not be parsed, or where its client fails to parse it. */
export function guardSocket<S extends Duplex>(socket: S, limits: ReplyLimits): S {
  const guard = new ReplyGuard(limits);
  const push = socket.push.bind(socket) as S['push'];
  socket.push = (chunk: Uint8Array | null, ...encoding) => {
    try {
      if (chunk !== null) guard.read(chunk);
      return push(chunk, ...encoding); // which parses it
    } catch (error) {
      socket.destroy(error as Error);
      return false;
    }
  };
  return socket;
}

/** The parts of a client, of one node or of a cluster, that reach all of its connections. */
export interface GuardedClient {
  readonly isCluster: boolean;
  duplicate(...parameters: unknown[]): unknown;
  on(event: string, listener: (...parameters: unknown[]) => void): unknown;
  /** Of one node: makes its sockets; with Sentinels it asks them by clients of its own. */
  readonly connector?: {
    connect(...parameters: unknown[]): Promise<Duplex>;
    connectToSentinel?(sentinel: object, options?: object): GuardedClient;
  };
}

/** Guards every connection that a client makes from now on. Pre: it is not connected. */
export function guardClient<C extends GuardedClient>(client: C, limits: ReplyLimits): C {
  if (client.isCluster) {
    client.on('+node', (node) => {
      guardClient(node as GuardedClient, limits);
    });
    return client;
  }
  // A cluster asks for its slots over duplicates of its nodes' clients.
  const duplicate = client.duplicate.bind(client);
  client.duplicate = (...parameters) => guardClient(duplicate(...parameters) as GuardedClient, limits);
  const connector = client.connector!;
  const connect = connector.connect.bind(connector);
  connector.connect = async (...parameters) => guardSocket(await connect(...parameters), limits);
  const connectToSentinel = connector.connectToSentinel?.bind(connector);
  if (connectToSentinel !== undefined) {
    connector.connectToSentinel = (sentinel, options) => (
      guardClient(connectToSentinel(sentinel, { ...options, lazyConnect: true }), limits)); // it connects as it asks
  }
  return client;
}
