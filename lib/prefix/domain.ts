// PrefixDomain: within which requests may share. Texts of different domains never meet, however alike they are. Each
// part has a place of its own in the key, so an adapter named "a" is not a salt named "a", and none is not the empty
// string.

/** Within which requests share: those whose parts are all equal. None is not the empty string. */
export interface PrefixDomainParts {
  /** Whose text it is: tenants are apart, and a tenant has a quota. */
  readonly tenant?: string | undefined;
  /** A further secret or group that must be equal. */
  readonly salt?: string | undefined;
  /** The adapter (LoRA) that computes K and V. */
  readonly adapter?: string | undefined;
  /** Version of the weights, or anything else that makes old entries unreachable when it changes. */
  readonly namespace?: string | undefined;
}

export const domainParts = ['namespace', 'tenant', 'salt', 'adapter'] as const;

export type PrefixDomainPart = (typeof domainParts)[number];

export interface PrefixDomain extends PrefixDomainParts {
  /** Equal exactly when all parts are. */
  readonly key: string;
}

/** A domain to match and acquire in; make it once per tenant or adapter, not per request. */
export function prefixDomain(parts: PrefixDomainParts = {}): PrefixDomain {
  const { namespace, tenant, salt, adapter } = parts;
  const key = JSON.stringify([namespace ?? null, tenant ?? null, salt ?? null, adapter ?? null]);
  return { namespace, tenant, salt, adapter, key };
}

/** The domain of requests that name none. */
export const sharedDomain: PrefixDomain = prefixDomain();

// TextScope: which texts are to be dropped: those of some domains, or those that begin with a text. Asked by whatever
// keeps text or works on it.

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
