// The parts of the driver contract. VKV_CONTRACT_GROUP names one to run it alone: on a GPU each has a process of its own, so that a
// device that one of them ends is there for the others (scripts/gpu/check.mjs).

export const contractGroups = ['info', 'reservations', 'pages', 'mappings', 'bytes', 'streams', 'processor', 'failures', 'random'] as const;

export type ContractGroup = (typeof contractGroups)[number];

export function isChosen(group: ContractGroup): boolean {
  const chosen = process.env['VKV_CONTRACT_GROUP'];
  return chosen === undefined || chosen === group;
}
