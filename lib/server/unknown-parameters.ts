// Unknown parameters of a request: clients of other servers send what this one does not have. They are taken out of the
// body before it is read strictly, and their names go back in a header.

import { isOptionsObject, type FieldSpec } from '../base/options.js';
import { messageSpec, partSpec } from './chat-messages.js';

/** Names that the header has at most. */
const mostNames = 32;

type Body = Readonly<Record<string, unknown>>;

/** The names of what was taken out, `messages[].thinking` among them. */
export class UnknownParameters {
  readonly #names = new Set<string>();

  /** A header's value; undefined: all were known. */
  get header(): string | undefined {
    if (this.#names.size === 0) return undefined;
    const names = [...this.#names].slice(0, mostNames).map((name) => name.slice(0, 64).replace(/[^\w.[\]-]/g, '_'));
    return names.join(', ') + (this.#names.size > mostNames ? ', ...' : '');
  }

  /** The body without what the spec, and those of messages and their parts, do not have. */
  takenFrom(body: Body, spec: FieldSpec): Body {
    const known = this.#known(body, spec, '');
    const { messages } = known;
    if (!Array.isArray(messages)) return known;
    return { ...known, messages: messages.map((message: unknown) => this.#message(message)) };
  }

  #message(message: unknown): unknown {
    if (!isOptionsObject(message)) return message;
    const known = this.#known(message as Body, messageSpec, 'messages[].');
    const { content } = known;
    if (!Array.isArray(content)) return known;
    return { ...known, content: content.map(
      (part: unknown) => (isText(part) ? this.#known(part, partSpec, 'messages[].content[].') : part),
    ) };
  }

  #known(given: Body, spec: FieldSpec, path: string): Body {
    const unknown = Object.keys(given).filter((name) => !Object.hasOwn(spec, name));
    if (unknown.length === 0) return given;
    for (const name of unknown) if (this.#names.size <= mostNames) this.#names.add(path + name);
    return Object.fromEntries(Object.entries(given).filter(([name]) => Object.hasOwn(spec, name)));
  }
}

/** A part whose other members are no content: that of an image is refused by its type. */
function isText(part: unknown): part is Body {
  return isOptionsObject(part) && ['text', 'refusal'].includes((part as { readonly type?: unknown }).type as string);
}
