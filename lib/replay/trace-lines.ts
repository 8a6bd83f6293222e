// Splits the bytes of a trace into lines of text, and a line of a CSV into its fields. A line is in memory as a whole,
// so there is a limit to its length.

import { StringDecoder } from 'node:string_decoder';

/**
 * Lines of UTF-8 text, without their LF or CRLF and without a byte order mark. Ends after the first line that is longer
 * than `maxCharacters`, of which it returns the beginning, at least one character more than that.
 */
export async function* linesOf(
  chunks: AsyncIterable<Buffer>, maxCharacters: number,
): AsyncGenerator<string, void, undefined> {
  const decoder = new StringDecoder('utf8');
  let rest = '';
  let isFirst = true;
  for await (const chunk of chunks) {
    let text = decoder.write(chunk);
    if (isFirst && text !== '') {
      isFirst = false;
      if (text.startsWith('\ufeff')) text = text.slice(1);
    }
    let from = 0;
    for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', from)) {
      const line = rest + text.slice(from, end);
      yield withoutReturn(line);
      if (line.length > maxCharacters) return;
      rest = '';
      from = end + 1;
    }
    rest += text.slice(from);
    if (rest.length > maxCharacters) break;
  }
  rest += decoder.end();
  if (rest !== '') yield withoutReturn(rest);
}

function withoutReturn(line: string): string {
  return line.endsWith('\r') ? line.slice(0, -1) : line;
}

/** A field of a CSV: between quotes, where two quotes stand for one, or up to the next comma. */
const csvField = /[^\S\n]*(?:"((?:[^"]|"")*)"[^\S\n]*(?=,|$)|([^,"]*)(?=,|$))/y;

/**
 * The fields of one line of a CSV, without blanks around them. A field ends with its line, also between quotes.
 * Returns what is wrong with the line instead where a quote is never closed, or stands inside a field without quotes.
 */
export function csvFields(line: string): string[] | string {
  const fields: string[] = [];
  for (let from = 0; from <= line.length; from = csvField.lastIndex + 1) {
    csvField.lastIndex = from;
    const [, quoted, plain] = csvField.exec(line) ?? [];
    if (quoted !== undefined) fields.push(quoted.replaceAll('""', '"').trim());
    else if (plain !== undefined) fields.push(plain.trim());
    else return hasOpenQuote(line.slice(from)) ? 'a quote is opened and never closed'
      : 'a quote stands in the middle of a field';
  }
  return fields;
}

function hasOpenQuote(text: string): boolean {
  return (text.match(/"/g) ?? []).length % 2 === 1;
}
