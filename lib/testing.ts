// virtual-kv/testing: the simulated CUDA device, for tests of engines and of this package.

export { MockDevice, type FailCallOptions, type MockDeviceOptions, type MockUse } from './device/mock-device.js';
export {
  mockCalls,
  type MockArguments, type MockCall, type MockJournalEntry, type MockLeaks, type MockLeftovers, type MockMisuse,
} from './device/mock-records.js';
