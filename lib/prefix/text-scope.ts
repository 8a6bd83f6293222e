// TextScope: which texts are to be dropped: those of some domains, or those that begin with a text. Asked by whatever
// keeps text or works on it.

import { domainParts, type PrefixDomain, type PrefixDomainParts } from './domain.js';

/**
 * All that begins with text[0, through), and what of the text behind its first `from` tokens no other text goes on
 * from.
 */
export interface DroppedText {
  readonly domain: PrefixDomain;
  readonly text: Int32Array;
  /** Tokens from its start that stay in any case. */
  readonly from: number;
  /** More than `from`, unless the text is empty. */
  readonly through: number;
}

export class TextScope {
  /** Undefined: whole domains. */
  readonly text: DroppedText | undefined;
  /** Of the domains: those that have all that is given. */
  readonly parts: PrefixDomainParts;

  private constructor(parts: PrefixDomainParts, text: DroppedText | undefined) {
    this.parts = parts;
    this.text = text;
  }

  static ofDomains(parts: PrefixDomainParts): TextScope {
    return new TextScope(parts, undefined);
  }

  static ofText(text: DroppedText): TextScope {
    return new TextScope(text.domain, text);
  }

  /** Whether text of the domain may be among it. */
  has(domain: PrefixDomain): boolean {
    if (this.text !== undefined) return domain.key === this.text.domain.key;
    return domainParts.every((part) => this.parts[part] === undefined || this.parts[part] === domain[part]);
  }

  /**
   * Whether the first `count` tokens of `text`, which need not all be computed yet, are among it: then nothing is to
   * become of them.
   */
  covers(domain: PrefixDomain, text: Int32Array, count = text.length): boolean {
    if (!this.has(domain)) return false;
    if (this.text === undefined) return true;
    const { text: dropped, from, through } = this.text;
    const most = Math.min(count, dropped.length);
    let agreed = 0;
    while (agreed < most && text[agreed] === dropped[agreed]) agreed += 1;
    return agreed > from && (agreed >= through || agreed === count);
  }
}
