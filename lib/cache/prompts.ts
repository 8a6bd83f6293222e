// Prompts: requests' prompts as the prefix cache knows them: tokens with items in them as one text, and the domain that
// tenant, salt, adapter and namespace make of it.

import { createError } from '../base/errors.js';
import type { FieldSpec, OptionsOf } from '../base/options.js';
import type { TensorSpec } from '../base/dtypes.js';
import { prefixDomain, type PrefixDomain } from '../prefix/domain.js';
import type { PromptEncoder, PromptItem } from '../prefix/prompt-encoder.js';
import { TextScope } from '../prefix/text-scope.js';
import { BlockKeys } from '../tiers/block-keys.js';
import { readPromptOptions, type PromptOptions, type ReadAcquireOptions } from './acquire-options.js';
import type { Prompt } from './admission-request.js';
import type { Lifetime } from './lifetime.js';

/** A prompt, and what else its options say. */
export interface ReadPrompt<S extends FieldSpec> {
  readonly text: Int32Array;
  readonly domain: PrefixDomain;
  readonly given: OptionsOf<S>;
}

/** A prompt that was read, and its domain. */
export interface KnownPrompt extends Pick<PromptOptions, 'tenant' | 'salt' | 'adapter'> {
  readonly tokens: Int32Array;
  readonly items: readonly PromptItem[];
  readonly namespace: string;
}

/** What a drop was given. */
export interface GivenScope extends Omit<KnownPrompt, 'tokens' | 'namespace'> {
  readonly tokens: Int32Array | undefined;
  readonly namespace: string | undefined;
}

export class Prompts {
  /** What requests' domains begin with. */
  namespace = '';
  readonly #lifetime: Lifetime;
  readonly #encoder: PromptEncoder;
  readonly #tensors: readonly TensorSpec[];

  /** @param tensors Of the model. */
  constructor(lifetime: Lifetime, encoder: PromptEncoder, tensors: readonly TensorSpec[]) {
    this.#lifetime = lifetime;
    this.#encoder = encoder;
    this.#tensors = tensors;
  }

  /** Whether it is a cache's, and no object that only has the prototype. */
  static isInstance(value: unknown): value is Prompts {
    return typeof value === 'object' && value !== null && #encoder in value;
  }

  /**
   * Throws KV_CLOSED once the cache is closed, KV_POLICY_REENTERED in a policy of its own, and the RangeError of a full
   * stack.
   */
  checkOpen(operation: string): void {
    this.#lifetime.enter(operation);
  }

  /** Reads a prompt and the options `more`. Throws KV_INVALID_OPTION, KV_UNKNOWN_OPTION and as `checkOpen`. */
  read<S extends FieldSpec>(owner: string, options: PromptOptions, more: S): ReadPrompt<S> {
    const given = readPromptOptions(owner, options, more);
    const { tokens, items, tenant, salt, adapter } = given;
    this.checkOpen('look up a prompt');
    if (tokens === undefined) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'tokens', expected: 'the tokens of the prompt', received: undefined,
      });
    }
    return { text: this.#textOf(tokens, items), domain: this.#domainOf(tenant, salt, adapter), given };
  }

  /**
   * Which text is to be dropped: of a prompt, or of all domains that have the given parts. Throws KV_INVALID_OPTION
   * where neither is given.
   */
  scopeOf(owner: string, { tokens, items, tenant, salt, adapter, namespace }: GivenScope): TextScope {
    if (tokens !== undefined && tokens.length > 0) {
      const domain = prefixDomain({ namespace: namespace ?? this.namespace, tenant, salt, adapter });
      return TextScope.ofText({ domain, text: this.#textOf(tokens, items), from: 0, through: tokens.length });
    }
    if (tokens !== undefined || [tenant, salt, adapter, namespace].every((part) => part === undefined)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'tokens', expected:
          'one token or more, or a tenant, a salt, an adapter or a namespace without `tokens`', received: tokens,
        hint: '`reset` drops everything.',
      });
    }
    return TextScope.ofDomains({ namespace, tenant, salt, adapter });
  }

  /** The text of a prompt that a scheduler has read, in a domain of this namespace. */
  textOf({ tokens, items, tenant, salt, adapter, namespace }: KnownPrompt): Pick<Prompt, 'domain' | 'text'> {
    return { domain: prefixDomain({ namespace, tenant, salt, adapter }), text: this.#textOf(tokens, items) };
  }

  /** That of a request, if its prefix can be cached. */
  of({ tokens, items, tenant, salt, adapter, caching, priority }: ReadAcquireOptions): Prompt | undefined {
    if (tokens === undefined || tokens.length === 0 || caching === 'off') return undefined;
    return {
      domain: this.#domainOf(tenant, salt, adapter), text: this.#textOf(tokens, items), priority,
      canRead: caching !== 'write', canWrite: caching !== 'read',
    };
  }

  /** Keys of a prompt's whole blocks in stores outside the process. */
  blockKeys({ domain, text }: Pick<Prompt, 'domain' | 'text'>, blockTokens: number): string[] {
    return new BlockKeys(this.#tensors, blockTokens).ofText(domain, text, this.#encoder);
  }

  #textOf(tokens: Int32Array, items: readonly PromptItem[]): Int32Array {
    return items.length === 0 ? tokens : this.#encoder.encode(tokens, items);
  }

  #domainOf(tenant: string | undefined, salt: string | undefined, adapter: string | undefined): PrefixDomain {
    return prefixDomain({ namespace: this.namespace, tenant, salt, adapter });
  }
}
