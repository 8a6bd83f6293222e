// How tokens fall into rows, where a row is a whole number of tokens, a fraction, or less than one.

import test from 'ava';

import { rowArithmetic } from '#internal/prefix/index.js';

for (const [tokenBytes, pageBytes] of [[1024, 2 ** 21], [5, 16], [5, 2], [576 * 2, 2 ** 16], [3, 3]] as const) {
  test(`tokens of ${tokenBytes} bytes in pages of ${pageBytes} are counted by bytes, never by rounded tokens`, (t) => {
    const { rowsFor, wholeRows, tokensIn } = rowArithmetic({ tokenBytes, pageBytes });
    for (let tokens = 0; tokens < 3000; tokens += 7) {
      const bytes = tokens * tokenBytes;
      t.is(rowsFor(tokens), Math.ceil(bytes / pageBytes));
      t.is(wholeRows(tokens), Math.floor(bytes / pageBytes));
      t.true(rowsFor(tokens) - wholeRows(tokens) <= 1);
      t.true(tokensIn(rowsFor(tokens)) >= tokens, 'the rows that tokens touch hold them');
      t.true(tokensIn(wholeRows(tokens)) <= tokens);
      t.true((tokensIn(wholeRows(tokens)) + 1) * tokenBytes > wholeRows(tokens) * pageBytes);
    }
  });
}

test('long texts of big models stay exact', (t) => {
  const { rowsFor, tokensIn } = rowArithmetic({ tokenBytes: 2 ** 20 - 3, pageBytes: 2 ** 21 });
  t.is(rowsFor(10_000_000), Number((10_000_000n * (2n ** 20n - 3n) + 2n ** 21n - 1n) / 2n ** 21n));
  t.is(tokensIn(5_000_000), Number((5_000_000n * 2n ** 21n) / (2n ** 20n - 3n)));
});
