// JSON as a model writes it: values in a row, and the members of an object as they stand there. Numbers of more digits
// than JavaScript's keep them: what a member says is handed on as text.

/**
 * The objects and arrays of a text that has nothing else but spaces, `;` and `,` between them; undefined: it has, or
 * none.
 */
export function jsonValues(text: string): readonly string[] | undefined {
  const values: string[] = [];
  for (let at = 0; at < text.length;) {
    if (/[\s;,]/.test(text[at]!)) at += 1;
    else if (text[at] !== '{' && text[at] !== '[') return undefined;
    else {
      const end = endOf(text, at);
      const value = text.slice(at, end);
      if (!isJson(value)) return undefined;
      values.push(value);
      at = end;
    }
  }
  return values.length === 0 ? undefined : values;
}

/** The members of an object by their names, as they stand there; undefined: it is no object of JSON. */
export function jsonMembers(text: string): ReadonlyMap<string, string> | undefined {
  if (!text.startsWith('{') || !isJson(text)) return undefined;
  const members = new Map<string, string>();
  const name = /[\s,{]*("(?:[^"\\]|\\.)*")\s*:\s*/y;
  for (let match = name.exec(text); match !== null; match = name.exec(text)) {
    const from = name.lastIndex;
    name.lastIndex = endOf(text, from);
    members.set(JSON.parse(match[1]!) as string, text.slice(from, name.lastIndex).trim());
  }
  return members;
}

/** The value that a text begins with, as far as it goes, without spaces around it. */
export function firstValue(text: string): string {
  const given = text.trimStart();
  return given.slice(0, endOf(given, 0)).trimEnd();
}

/** The text of a string of JSON; undefined for another value. */
export function jsonString(value: string | undefined): string | undefined {
  return value?.startsWith('"') === true ? JSON.parse(value) as string : undefined;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Where the value that begins at `from` ends: behind its last bracket, or before the comma or bracket behind it. */
function endOf(text: string, from: number): number {
  let depth = 0;
  for (let at = from; at < text.length; at += 1) {
    const character = text[at]!;
    if (character === '"') {
      for (at += 1; at < text.length && text[at] !== '"'; at += 1) if (text[at] === '\\') at += 1;
    } else if (character === '{' || character === '[') depth += 1;
    else if (depth === 0 && /[,}\]]/.test(character)) return at;
    else if (character === '}' || character === ']') {
      depth -= 1;
      if (depth === 0) return at + 1;
    }
  }
  return text.length;
}
