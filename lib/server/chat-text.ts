// ChatText: parts the text of an answer, as it comes, into what the model thinks (`<think>`), what it says and the
// functions that it calls. Text that may be the beginning of a tag, and calls, are held back until they are whole. For
// one answer.

import { begunCall, taggedCall, wholeCalls, type ToolCall } from './tool-calls.js';

/** What came next. */
export type ChatDelta =
  | { readonly content: string }
  | { readonly reasoning_content: string }
  | { readonly call: ToolCall };

export interface ChatTextOptions {
  /** Whether the prompt has begun what the model thinks. */
  readonly isThinking: boolean;
  /** Names of the functions that the model was told of; empty: calls are text. */
  readonly tools: ReadonlySet<string>;
  /** Calls of an answer at most. */
  readonly mostCalls: number;
  /** Whether the answer was begun as a call: so it is one, whatever its arguments are. */
  readonly mustCall: boolean;
}

const thinks = ['<think>', '</think>'] as const;
const calls = ['<tool_call>', '</tool_call>'] as const;

export class ChatText {
  readonly #tools: ReadonlySet<string>;
  readonly #mostCalls: number;
  readonly #mustCall: boolean;
  #state: 'start' | 'thinking' | 'answer' | 'saying' | 'calling' | 'whole';
  /** What is not parted yet. */
  #held = '';
  #calls = 0;
  #hasThought = false;

  constructor({ isThinking, tools, mostCalls, mustCall }: ChatTextOptions) {
    this.#state = isThinking ? 'thinking' : 'start';
    this.#tools = tools;
    this.#mostCalls = mostCalls;
    this.#mustCall = mustCall;
  }

  /** Whether a function was called. */
  get hasCalls(): boolean {
    return this.#calls > 0;
  }

  /** Takes the next piece; returns what is whole by then. */
  push(piece: string): ChatDelta[] {
    this.#held += piece;
    const deltas: ChatDelta[] = [];
    while (this.#part(deltas));
    return deltas;
  }

  /** What was held back, at the end of the answer. */
  end(): ChatDelta[] {
    const held = this.#held;
    this.#held = '';
    if (this.#state === 'thinking') return thought(held.trimEnd());
    if (this.#state === 'answer') return []; // blank lines behind what it thought
    if (this.#state === 'calling') return this.#called(held, `${calls[0]}${held}`);
    const whole = this.#state === 'whole' ? wholeCalls(held, this.#tools) ?? this.#begun(held) : undefined;
    if (whole !== undefined) return whole.flatMap((call) => this.#add(call));
    return this.hasCalls && held.trim() === '' ? [] : said(held);
  }

  /** Goes one step on. Returns whether there may be another. */
  #part(deltas: ChatDelta[]): boolean {
    switch (this.#state) {
      case 'start':
      case 'answer': return this.#begin();
      case 'thinking': return this.#think(deltas);
      case 'saying': return this.#say(deltas);
      case 'calling': return this.#call(deltas);
      case 'whole': return false;
    }
  }

  #begin(): boolean {
    const text = this.#held.trimStart();
    if (text === '') return false;
    if (this.#state === 'start') {
      if (text.startsWith(thinks[0])) {
        this.#held = text.slice(thinks[0].length);
        this.#state = 'thinking';
        return true;
      }
      if (thinks[0].startsWith(text)) return false;
    } else this.#held = text; // blank lines behind what it thought
    this.#state = this.#tools.size > 0 && /^[{[]/.test(text) ? 'whole' : 'saying';
    return true;
  }

  #think(deltas: ChatDelta[]): boolean {
    const end = this.#held.indexOf(thinks[1]);
    const until = end < 0 ? settled(this.#held, thinks[1]) : end;
    const text = end < 0 ? this.#held.slice(0, until) : this.#held.slice(0, until).trimEnd();
    deltas.push(...thought(this.#hasThought ? text : text.trimStart()));
    this.#hasThought ||= text.trim() !== '';
    this.#held = this.#held.slice(end < 0 ? until : end + thinks[1].length);
    if (end >= 0) this.#state = 'answer';
    return end >= 0;
  }

  #say(deltas: ChatDelta[]): boolean {
    if (this.#tools.size === 0) {
      deltas.push(...said(this.#held));
      this.#held = '';
      return false;
    }
    const begin = this.#held.indexOf(calls[0]);
    const until = begin < 0 ? settled(this.#held, calls[0]) : begin;
    const text = this.#held.slice(0, until);
    deltas.push(...said(begin < 0 ? text : text.trimEnd()));
    this.#held = this.#held.slice(begin < 0 ? until : begin + calls[0].length);
    if (begin >= 0) this.#state = 'calling';
    return begin >= 0;
  }

  #call(deltas: ChatDelta[]): boolean {
    let end = this.#held.indexOf(calls[1]);
    while (end >= 0 && isInString(this.#held.slice(0, end))) end = this.#held.indexOf(calls[1], end + 1);
    if (end < 0) return false;
    const text = this.#held.slice(0, end);
    deltas.push(...this.#called(text, `${calls[0]}${text}${calls[1]}`));
    this.#held = this.#held.slice(end + calls[1].length);
    this.#state = 'saying';
    return true;
  }

  /** A call, or its text where it is none. */
  #called(text: string, whole: string): ChatDelta[] {
    const call = taggedCall(text) ?? this.#begun(text)?.[0];
    return call === undefined ? said(whole) : this.#add(call);
  }

  /** The call that the answer was begun with. */
  #begun(text: string): readonly ToolCall[] | undefined {
    const call = this.#mustCall && !this.hasCalls ? begunCall(text, this.#tools) : undefined;
    return call && [call];
  }

  #add(call: ToolCall): ChatDelta[] {
    this.#calls += 1;
    return this.#calls <= this.#mostCalls ? [{ call }] : [];
  }
}

/** Characters that surely belong to the text before a tag: neither spaces at the end nor a part of the tag. */
function settled(text: string, tag: string): number {
  let until = text.length;
  for (let length = Math.min(tag.length - 1, text.length); length > 0; length -= 1) {
    if (!text.endsWith(tag.slice(0, length))) continue;
    until -= length;
    break;
  }
  return text.slice(0, until).trimEnd().length;
}

/** Whether a string of JSON is open at the end: a tag there is an argument's text. */
function isInString(text: string): boolean {
  return (text.replace(/\\./gs, '').split('"').length - 1) % 2 === 1;
}

function said(content: string): ChatDelta[] {
  return content === '' ? [] : [{ content }];
}

function thought(text: string): ChatDelta[] {
  return text === '' ? [] : [{ reasoning_content: text }];
}
