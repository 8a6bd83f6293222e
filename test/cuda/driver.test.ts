// DriverCuda where Node cannot reach it (test/native/cuda_probe.cc): forks, nested scopes, many threads. What its calls
// mean is in the contract suite and in test/mock.

import test from 'ava';

import { hasCompiler, runProbe } from '../helpers/native-probe.js';

const probeTest = hasCompiler ? test : test.skip;
const driverUnavailable = 5;
const driverMisuse = 10;
const forked = 7;
const relaxed = 2;
const threadLocal = 1;

let facts: Readonly<Record<string, number>> = {};

test.before(() => {
  if (!hasCompiler) return;
  const lines = runProbe('cuda_probe').map((line) => line.split(' '));
  facts = Object.fromEntries(lines.map(([name, value]) => [name!, Number(value)]));
});

probeTest('in a forked child every call is refused, and none reaches the device', (t) => {
  t.like(facts, {
    'child-enter-code': driverUnavailable, 'child-enter-reason': forked, 'child-create-code': driverUnavailable,
    'child-calls': 0, 'child-exit': 0,
  });
});

probeTest('a fork leaves the parent as it was', (t) => {
  t.like(facts, { 'parent-works': 1, 'parent-contexts': 0 });
});

probeTest('scopes nest, also those of two drivers', (t) => {
  t.like(facts, { 'pushed-first': 2, 'pushed-second': 1, 'works-after-inner': 1, 'pushed-after': 0 });
});

probeTest('a scope relaxes the capture mode of its thread, and restores it', (t) => {
  t.like(facts, { 'mode-inside': relaxed, 'mode-after': threadLocal });
});

probeTest('what has no page is not unmapped, also where CUDA passes over it in silence', (t) => {
  t.like(facts, {
    'unmap-across-hole': driverMisuse, 'unmap-hole': driverMisuse, 'unmap-past-end': driverMisuse, 'mapped-after-refusals': 3,
    'unmap-pages': 0, 'unmap-again': driverMisuse, 'unmap-last': 0,
  });
});

probeTest('many threads may use a driver at once', (t) => {
  t.like(facts, { lives: 1600, 'live-pages': 0, leaks: 0, contexts: 0, misuses: 0 });
});
