// DomainMarks: what a tier's records tell of whose text they have, so that text of a tenant or an adapter is found for
// dropping also after a restart. Marks are parts of hashes: they hide a name as far as it cannot be guessed, as keys
// do.

import { createHash } from 'node:crypto';

import { domainParts, type PrefixDomainParts } from '../prefix/domain.js';

/** For namespace, tenant, salt and adapter, in this order: 16 hexadecimal digits; empty: it has none. */
export type DomainMarks = readonly string[];

export function marksOf(domain: PrefixDomainParts): DomainMarks {
  return domainParts.map((part) => (domain[part] === undefined ? '' : markOf(domain[part])));
}

/** Whether text with these marks may be of a domain that has all the given parts: also where nothing is known of it. */
export function mayHave(marks: DomainMarks | undefined, parts: PrefixDomainParts): boolean {
  return marks === undefined
    || domainParts.every((part, index) => parts[part] === undefined || marks[index] === markOf(parts[part]));
}

/** Undefined: no marks. */
export function readMarks(value: unknown): DomainMarks | undefined {
  return Array.isArray(value) && value.length === domainParts.length && value.every((mark) => typeof mark === 'string')
    ? value as string[]
    : undefined;
}

function markOf(name: string): string {
  return createHash('sha256').update('virtual-kv domain mark').update(name, 'utf16le').digest('hex').slice(0, 16);
}
