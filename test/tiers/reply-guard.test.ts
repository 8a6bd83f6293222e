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

const tooLong = / bytes .* 1,000 /;
const bad: readonly (readonly [string, RegExp])[] = [
  [nested(9), /nested .* 8 /], ['*1\r\n'.repeat(100_000), /nested .* 8 /],
  ['$536870912\r\n', /536,870,926 bytes/], [`$${limit}\r\n`, tooLong], ['*334\r\n', tooLong],
  [`*2\r\n${bulk('x'.repeat(900))}${bulk('x'.repeat(90))}`, tooLong], ['*4294967295\r\n', tooLong],
  [`*2\r\n*100\r\n${':1\r\n'.repeat(100)}*200\r\n`, tooLong],
  ['$12345678901\r\n', /a length/], ['$-2\r\n', /a length/],
  ['$\r\n', /a length/], ['*1x\r\n', /a length/],
  [':five\r\n', /an integer/], [':\r\n', /an integer/],
  ['HTTP/1.1 400 Bad Request\r\n', /a type .*"H"/],
  ['%1\r\n', /a type .*"%"/], ['\r\n', /a type/],
  ['+OK\n', /CR LF/], ['+O\rK\r\n', /CR LF/], ['$3\r*1\r\n', /CR LF/],
  [`+${'x'.repeat(70_000)}`, /a line .* 65,536 /],
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
  t.throws(() => guard.read(Buffer.from('$94\r\n')), { message: / 100 / });
});
