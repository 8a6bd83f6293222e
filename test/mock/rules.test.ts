// Every rule of the simulated device, broken at least once through its entry points (test/native/mock_probe.cc): it is
// noticed, once, under its name; the call answers what CUDA would; and nothing has changed.

import { readFileSync } from 'node:fs';
import * as path from 'node:path';

import test from 'ava';

import { hasCompiler, runProbe } from '../helpers/native-probe.js';

const rulesHeader = path.resolve(__dirname, '..', '..', 'native', 'mock', 'rules.h');
const probeTest = hasCompiler ? test : test.skip;

/** What breaks a rule: the rule's name in native/mock/rules.h, and the CUresult that answers it. */
const breaches: Readonly<Record<string, readonly [rule: string, result: number]>> = {
  'init with flags': ['kFlags', 1],
  'a version to nowhere': ['kOutput', 1],
  'an error name to nowhere': ['kOutput', 1],
  'a device that is not there': ['kKnownDevice', 101],
  'the memory of a device that is not there': ['kKnownDevice', 101],
  'the context of a device that is not there': ['kKnownDevice', 101],
  'push of no context': ['kLiveContext', 201],
  'pop of nothing': ['kNoContextToPop', 201],
  'a call without a context': ['kCurrentContext', 201],
  'a call with a destroyed context': ['kLiveContext', 709],
  'release of a context too often': ['kRetainedContext', 201],
  'reserve with flags': ['kFlags', 1],
  'reserve nothing': ['kHostPages', 1],
  'reserve half a host page': ['kHostPages', 1],
  'reserve with an odd alignment': ['kAlignment', 1],
  'free half a reservation': ['kExactReservation', 1],
  'free inside a reservation': ['kExactReservation', 1],
  'free with pages mapped': ['kEmptyReservation', 1],
  'create with flags': ['kFlags', 1],
  'create half a granule': ['kGranularity', 1],
  'create on another device': ['kProperties', 1],
  'create without properties': ['kProperties', 1],
  'granularity of no kind of memory': ['kProperties', 1],
  'release what never was': ['kLivePage', 1],
  'release twice': ['kLivePage', 1],
  'retain where nothing is mapped': ['kMapped', 1],
  'release more often than retained': ['kLivePage', 1],
  'map with flags': ['kFlags', 1],
  'map from an offset': ['kOffset', 801],
  'map at half a granule': ['kGranularity', 1],
  'map what never was': ['kLivePage', 1],
  'map more than the page': ['kWholePage', 801],
  'map over a page': ['kUnmapped', 1],
  'map behind the reservation': ['kOneReservation', 1],
  'access to a hole': ['kNoHole', 1],
  'access to nothing at all': ['kNoHole', 1],
  'access of no kind': ['kAccess', 1],
  'access for no device': ['kAccess', 1],
  'the access of a hole': ['kMapped', 1],
  'unmap a hole': ['kNoHole', 1],
  'unmap across a hole': ['kNoHole', 1],
  'unmap behind the reservation': ['kOneReservation', 1],
  'unmap part of a page': ['kWholeMappings', 1],
  'unmap under queued work': ['kBusy', 700],
  'unmap under a queued kernel': ['kBusy', 700],
  'write to a hole': ['kWritable', 1],
  'write to read-only memory': ['kWritable', 1],
  'write from nowhere': ['kHostPointer', 1],
  'read a hole': ['kReadable', 1],
  'read memory without access': ['kReadable', 1],
  'read past the end of all addresses': ['kReadable', 1],
  'register half a page of the CPU': ['kRegistrable', 1],
  'register the memory of the device': ['kRegistrable', 1],
  'register with flags': ['kFlags', 1],
  'register what is registered in part': ['kRegisteredOnce', 712],
  'unregister inside a registration': ['kRegistered', 713],
  'unregister twice': ['kRegistered', 713],
  'unregister under a queued copy': ['kRegistrationInUse', 700],
  'find what was registered for copies only': ['kRegisteredForDevice', 1],
  'find the middle of a registration': ['kRegisteredForDevice', 1],
  'find a registration with flags': ['kFlags', 1],
  'a kernel in memory of the CPU that it was not told of': ['kKernelAccess', 700],
  'a kernel past the end of memory of the CPU': ['kKernelAccess', 700],
  'unregister under a queued kernel': ['kRegistrationInUse', 700],
  'read across the end of a registration': ['kOneRegistration', 1],
  'read into two registrations': ['kOneRegistration', 1],
  'copy from a hole': ['kReadable', 1],
  'copy onto itself': ['kOverlap', 1],
  'copy onto its alias': ['kOverlap', 1],
  'fill a hole': ['kWritable', 1],
  'a kernel in a hole': ['kKernelAccess', 700],
  'a kernel through two addresses': ['kAlias', 0],
  'a module that is no image': ['kImage', 200],
  'the end of a module that never was': ['kLiveModule', 400],
  'a kernel of a module that was unloaded': ['kLiveKernel', 400],
  'a kernel without parameters': ['kKernelParameters', 1],
  'a kernel with another grid than it needs': ['kLaunchSize', 1],
  'a kernel with more threads than a block can have': ['kLaunchSize', 1],
  'a stream that never was': ['kLiveStream', 400],
  'a fill on a destroyed stream': ['kLiveStream', 400],
  'the end of the default stream': ['kLiveStream', 400],
  'an event that never was': ['kLiveEvent', 400],
  'a capture of the default stream': ['kCapturable', 900],
  'the end of a capture that never began': ['kCaptured', 401],
  'a wait for a stream that is captured': ['kNotWhileCapturing', 900],
  'a wait for everything while a stream is captured': ['kNotWhileCapturing', 900],
  'the default stream beside the capture of a blocking one': ['kDefaultStream', 906],
  'a wait for the default stream beside the capture of a blocking one': ['kDefaultStream', 906],
  'an event of the default stream beside the capture of a blocking one': ['kDefaultStream', 906],
  'a copy on no stream beside the capture of a blocking one': ['kDefaultStream', 906],
  'a read on a stream that is captured': ['kNotWhileCapturing', 900],
  'the launch of a graph that never was': ['kLiveGraph', 400],
  'a call before init': ['kInitialized', 3],
};

interface Outcome {
  readonly result: number;
  readonly misuses: number;
  readonly hasChanged: boolean;
  readonly rule: string;
}

let outcomes: ReadonlyMap<string, Outcome> = new Map();

test.before(() => {
  if (hasCompiler) outcomes = readOutcomes();
});

for (const [title, [rule, result]] of Object.entries(breaches)) {
  probeTest(`noticed: ${title}`, (t) => {
    t.deepEqual(outcomes.get(title), { result, misuses: 1, hasChanged: false, rule: rules().get(rule)! });
  });
}

probeTest('every breach of the probe is expected', (t) => {
  t.deepEqual([...outcomes.keys()].sort(), Object.keys(breaches).sort());
});

test('every rule is broken by one of these tests', (t) => {
  t.deepEqual([...new Set(Object.values(breaches).map(([rule]) => rule))].sort(), [...rules().keys()].sort());
});

/** The text of each rule by its name. */
function rules(): ReadonlyMap<string, string> {
  const source = readFileSync(rulesHeader, 'utf8');
  return new Map([...source.matchAll(/(k\w+)\[\] =\s*"([^"]+)"/g)].map(([, name, text]) => [name!, text!]));
}

function readOutcomes(): ReadonlyMap<string, Outcome> {
  const lines = runProbe('mock_probe').map((line) => line.split('|'));
  return new Map(lines.map(([title, result, misuses, hasChanged, rule]) =>
    [title!, { result: Number(result), misuses: Number(misuses), hasChanged: hasChanged !== '0', rule: rule! }]));
}
