// Classes of text: texts that are used again at different rates, as far as an eviction policy can tell. A class is the
// kind of text, by its uses, and two traits of the latest request that used it: how many tokens of its prompt were new,
// and how long its answer was.

/** How a request begins: with nothing that was seen before, where a text ended, or somewhere in a text. */
export const turns = { first: 0, continues: 1, branches: 2 } as const;

export type Turn = (typeof turns)[keyof typeof turns];

/** Tokens from which on the prompt of a request had more new ones, by level. */
const newLimits = [1_024, 3_072, 7_168] as const;
/** Tokens from which on its answer was longer, by level. */
const answerLimits = [32, 128, 512] as const;

/** Of text used once, by the turn that brought it; of text used again: 2, 3–4, 5–8, 9–32 or more uses. */
const kinds = 8;
const newLevels = newLimits.length + 1;
const answerLevels = answerLimits.length + 1;
/** New tokens and length of the answer together. */
const requestClasses = newLevels * answerLevels;

export const textClasses = kinds * requestClasses;

/** The class of the latest request that used a text, 0 … 15. */
export function requestClass(newTokens: number, answerTokens: number): number {
  return levelOf(newTokens, newLimits) * answerLevels + levelOf(answerTokens, answerLimits);
}

/** `uses`: with the present one, at least 1; `turn`: of the request that brought the text. */
export function textClass(uses: number, turn: Turn, ofRequest: number): number {
  return kindOf(uses, turn) * requestClasses + ofRequest;
}

/**
 * What is learnt of many classes together: by kind, by new tokens, by answer, by both. Of each grouping the group of
 * each class.
 */
export const classGroupings: readonly Uint8Array[] = [
  groupsBy((ofClass) => Math.floor(ofClass / requestClasses)),
  groupsBy((ofClass) => Math.floor((ofClass % requestClasses) / answerLevels)),
  groupsBy((ofClass) => ofClass % answerLevels),
  groupsBy((ofClass) => ofClass % requestClasses),
];

function groupsBy(groupOf: (ofClass: number) => number): Uint8Array {
  return Uint8Array.from({ length: textClasses }, (_, ofClass) => groupOf(ofClass));
}

function levelOf(tokens: number, [few, some, many]: readonly [number, number, number]): number {
  return tokens < few ? 0 : tokens < some ? 1 : tokens < many ? 2 : 3;
}

function kindOf(uses: number, turn: Turn): number {
  return uses <= 1 ? turn : uses === 2 ? 3 : uses <= 4 ? 4 : uses <= 8 ? 5 : uses <= 32 ? 6 : 7;
}
