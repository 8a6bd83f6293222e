// ReplyGuard alone: what it passes and refuses, however the bytes are cut into chunks.

import test from 'ava';

import { ReplyGuard } from '#internal/tiers/redis/reply-guard.js';
import { bulk } from '../helpers/odd-redis.js';

const limit = 1_000;

/** Why it refuses these bytes, in chunks of so many; '' where it passes them. */
function refusal(bytes: string, chunkBytes = bytes.length): string {
  const guard = new ReplyGuard({ replyBytes: limit });
  const all = Buffer.from(bytes, 'latin1');
  try {
    for (let at = 0; at < all.length; at += chunkBytes) guard.read(all.subarray(at, at + chunkBytes));
    return '';
  } catch (error) {
    return (error as Error).message;
  }
}

const hostname = `*2\r\n${bulk('hostname')}${bulk('a.example')}`;
const range = `*3\r\n:0\r\n:8191\r\n*4\r\n${bulk('10.0.0.1')}:7000\r\n${bulk('a'.repeat(40))}${hostname}`;
const nested = (depth: number): string => `${'*1\r\n'.repeat(depth)}:1\r\n`;

const good = [
  '+OK\r\n', ':0\r\n', ':-1\r\n', '$-1\r\n', '*-1\r\n', '*0\r\n', '$0\r\n\r\n', '-ERR no\r\n',
  bulk('a\r\n*1\r\n$9999999999\r\n'), bulk('x'.repeat(limit - 8)), `*2\r\n${range}${range}`, nested(8),
  `*3\r\n$-1\r\n*0\r\n*2\r\n${bulk('')}*-1\r\n`, `*200\r\n${':1\r\n'.repeat(100)}${'+\r\n'.repeat(100)}`,
];

const tooLong = /a reply of [\d,]+ bytes or more where 1,000 are the most/;
const bad: readonly (readonly [string, RegExp])[] = [
  [nested(9), /nested more than 8 deep/], ['*1\r\n'.repeat(100_000), /nested more than 8 deep/],
  ['$536870912\r\n', /a reply of 536,870,926 bytes or more/], [`$${limit}\r\n`, tooLong], ['*334\r\n', tooLong],
  [`*2\r\n${bulk('x'.repeat(900))}${bulk('x'.repeat(90))}`, tooLong], ['*4294967295\r\n', tooLong],
  [`*2\r\n*100\r\n${':1\r\n'.repeat(100)}*200\r\n`, tooLong],
  ['$12345678901\r\n', /a length that is none/], ['$-2\r\n', /a length that is none/],
  ['$\r\n', /a length that is none/], ['*1x\r\n', /a length that is none/],
  [':five\r\n', /an integer that is none/], [':\r\n', /an integer that is none/],
  ['HTTP/1.1 400 Bad Request\r\n', /a type that RESP 2 does not have, "H"/],
  ['%1\r\n', /a type that RESP 2 does not have, "%"/], ['\r\n', /a type that/],
  ['+OK\n', /does not end by CR LF/], ['+O\rK\r\n', /does not end by CR LF/], ['$3\r*1\r\n', /does not end by CR LF/],
  [`+${'x'.repeat(70_000)}`, /a line of more than 65,536 bytes/],
];

test('replies of a store pass, one behind the other, however they are cut', (t) => {
  for (const reply of good) {
    for (const chunkBytes of [1, 2, 3, 7, reply.length]) t.is(refusal(reply, chunkBytes), '', reply);
  }
  const all = good.join('').repeat(3);
  for (const chunkBytes of [1, 5, 64, 1_000, all.length]) t.is(refusal(all, chunkBytes), '');
});

test('what nests too deep, announces too much or is no RESP 2 is refused, however it is cut', (t) => {
  for (const [reply, why] of bad) {
    for (const before of ['', good.join('')]) {
      for (const chunkBytes of [1, 3, 64, 100_000]) t.regex(refusal(before + reply, chunkBytes), why);
    }
    t.true(refusal(reply).startsWith('Protocol error: '));
  }
});

test('a limit that was raised counts at once', (t) => {
  const limits = { replyBytes: 10 };
  const guard = new ReplyGuard(limits);
  guard.read(Buffer.from('$3\r\nabc\r\n'));
  limits.replyBytes = 100;
  guard.read(Buffer.from(bulk('x'.repeat(90))));
  t.throws(() => guard.read(Buffer.from('$94\r\n')), { message: /where 100 are the most/ });
});
