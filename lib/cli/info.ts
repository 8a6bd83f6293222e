// `vkv info`: the machine and the build, as a table or as JSON; machine-info.ts collects the facts. The exit code is 0 also when
// there is no driver: that is an answer.

import { Command } from 'commander';

import { formatBytes, formatNumber, printableJson } from '../base/format.js';
import { inspectMachine, type DriverReport, type MachineInfo } from './machine-info.js';
import { factsTable, type TableRow } from './table.js';

export function infoCommand(): Command {
  return new Command('info')
    .description('print versions, drivers, why one is missing, memory and limits')
    .option('--json', 'print JSON, sizes in bytes')
    .action(({ json }: { json?: boolean }) => {
      const machine = inspectMachine();
      process.stdout.write(`${json ? printableJson(machine) : factsTable(facts(machine))}\n`);
    });
}

function facts({ package: version, node, platform, addon, drivers, host }: MachineInfo): TableRow[] {
  return [
    ['virtual-kv', version],
    ['addon', addon.isAvailable ? `${addon.version}, built with ${addon.buildTool}: ${addon.file}` : `not loaded. ${addon.reason}`],
    ['node', `${node}, ${platform}`],
    ['memory', `${formatBytes(host.freeBytes)} free of ${formatBytes(host.memoryBytes)}`],
    ['mappings', host.maxMapCount === undefined
      ? 'the system names no limit'
      : `${formatNumber(host.maxMapCount)} per process (vm.max_map_count)`],
    ...drivers.flatMap(driverFacts),
  ];
}

function driverFacts(driver: DriverReport): TableRow[] {
  const title = driver.kind === 'cuda' && driver.isAvailable ? `cuda device ${driver.device}` : driver.kind;
  if (!driver.isAvailable) return [[title, driver.reason]];
  const { memory, mappingLimit, reservableBytes: reservable } = driver;
  return [
    [title, deviceName(driver)],
    ['  memory', `${formatBytes(memory.freeBytes)} free of ${formatBytes(memory.totalBytes)}`],
    ['  pages', `${formatBytes(driver.defaultPageBytes)}, or any multiple of ${formatBytes(driver.granularityBytes)}`],
    ['  addresses', `${reservable === 0 ? 'less than 1 TiB' : formatBytes(reservable)} in one reservation`],
    ...(mappingLimit === 0 ? [] : [['  mappings', `${formatNumber(mappingLimit)} at most, for all host drivers of a process`] as const]),
  ];
}

function deviceName({ deviceName: name, driverVersion, computeCapability }: DriverReport & { isAvailable: true }): string {
  if (driverVersion === 0) return name;
  const api = `${Math.floor(driverVersion / 1000)}.${Math.floor((driverVersion % 1000) / 10)}`;
  return `${name}, driver API ${api}, compute capability ${Math.floor(computeCapability / 10)}.${computeCapability % 10}`;
}
