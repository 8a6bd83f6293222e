// How long one of many launches takes that follow each other on the default stream, by this machine's clock: the median of some
// rounds, each from the first launch to the end of the last, after a round that is not counted. A round is long enough that its
// start and end are lost in it.

const roundMs = 20;
const rounds = 7;
const mostLaunches = 1000;

/** On a simulated device everything is small, and no time means anything. */
export const isSimulated = (driver) => driver.memory().totalBytes < 8 * 2 ** 30;

/** `run(turn)`, whose turn goes on from round to round; µs. */
export function timeLaunchesUs(driver, run) {
  let turn = 0;
  const roundUs = (launches) => {
    driver.native.synchronizeStream(0n);
    const begin = process.hrtime.bigint();
    for (let launch = 0; launch < launches; launch += 1) run(turn++);
    driver.native.synchronizeStream(0n);
    return Number(process.hrtime.bigint() - begin) / 1e3 / launches;
  };
  roundUs(1);
  if (isSimulated(driver)) return roundUs(2);
  const launches = Math.min(mostLaunches, Math.ceil((roundMs * 1e3) / roundUs(2)));
  return Array.from({ length: rounds }, () => roundUs(launches)).sort((a, b) => a - b)[(rounds - 1) / 2];
}
