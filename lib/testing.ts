// virtual-kv/testing: the simulated CUDA device and faults of disk stores, for tests of engines and of this package;
// and the contracts of an engine and of a tier, for their authors.

export { MockDevice, type FailCallOptions, type MockDeviceOptions, type MockUse } from './device/mock-device.js';
export {
  mockCalls,
  type MockArguments, type MockCall, type MockJournalEntry, type MockLeaks, type MockLeftovers, type MockMisuse,
} from './device/mock-records.js';
export {
  engineContract, type EngineContractCheck, type EngineContractOptions, type EngineContractPlace,
} from './serving/engine-contract.js';
export { tierContract, type TierContractCheck, type TierContractPlace } from './tiers/tier-contract.js';
export { fileCalls, StoreFaults, type FileCall, type FileChange, type StoreFault } from './store/store-faults.js';
