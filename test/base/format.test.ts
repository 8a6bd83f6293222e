import test from 'ava';

import { formatAddress, formatBytes, formatCount, formatList, formatNumber, parseBytes } from '#internal/base/format.js';

test('sizes are shown in the largest unit of which there is one', (t) => {
  t.is(formatBytes(0), '0 B');
  t.is(formatBytes(1000), '1,000 B');
  t.is(formatBytes(1024), '1 KiB');
  t.is(formatBytes(2 ** 21), '2 MiB');
  t.is(formatBytes(4_278_190_080), '4 GiB');
  t.is(formatBytes(4_278_190_080, 2), '3.98 GiB');
  t.is(formatBytes(12_582_912_000_000), '11.4 TiB');
  t.is(formatBytes(1024 ** 2 - 1), '1 MiB', 'rounding up to 1,024 KiB goes to the next unit');
});

test('numbers, counts, lists and addresses are formatted for people', (t) => {
  t.is(formatNumber(1234567), '1,234,567');
  t.is(formatNumber(34.1333, 2), '34.13');
  t.is(formatCount('page', 1), '1 page');
  t.is(formatCount('entry', 2000, 'entries'), '2,000 entries');
  t.is(formatList([1, 2, 4096]), '1, 2 or 4,096');
  t.is(formatList(['a', 'b'], 'and'), 'a and b');
  t.is(formatList(['a']), 'a');
  t.is(formatList([]), '');
  t.is(formatAddress(0x7f3a40000000), '0x7f3a40000000');
  t.is(formatAddress(0x7f3a40000000n), '0x7f3a40000000');
});

test('sizes are read in binary and decimal units, any case', (t) => {
  const sizes: Record<string, number> = {
    '2097152': 2 ** 21, '2MiB': 2 ** 21, '64kib': 65536, '8 GiB': 2 ** 33, '1.5KiB': 1536, '80GB': 80e9, '2,097,152': 2 ** 21,
    '1TiB': 2 ** 40, '0': 0, '7B': 7,
  };
  for (const [text, bytes] of Object.entries(sizes)) t.is(parseBytes(text), bytes, text);
});

test('a text that is no whole number of bytes is no size', (t) => {
  for (const text of ['', 'x', '2 MiBs', '-1', '1.5', '0.3KiB', '9PiB9', '1e3', '99999PiB', '0x10']) {
    t.is(parseBytes(text), undefined, text);
  }
});
