// Times one of many launches that follow each other on the default stream, by this machine's clock: the median of some
// rounds, each from the first launch to the end of the last, after a round that is not counted. A round is long enough that its
// start and end do not matter.

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

// Random floats: between 2⁻⁵ and 1 in magnitude, of either sign, in the bits of each type. Over zeros, memory and arithmetic would be
// faster than over an engine's data.

const mostPatternBytes = 4 * 2 ** 20;
const bits = {
  float32: { Words: Uint32Array, keep: 0x807f_ffff, exponent: 122, shift: 23 },
  float16: { Words: Uint16Array, keep: 0x83ff, exponent: 10, shift: 10 },
  bfloat16: { Words: Uint16Array, keep: 0x807f, exponent: 122, shift: 7 },
};

function pattern(dtype, bytes) {
  const { Words, keep, exponent, shift } = bits[dtype];
  const words = new Words(bytes / Words.BYTES_PER_ELEMENT);
  let state = 1;
  for (let at = 0; at < words.length; at += 1) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    const random = (state ^ (state >>> 15)) >>> 0;
    words[at] = ((random & keep) | ((exponent + (random >>> 8) % 5) << shift)) >>> 0;
  }
  return new Uint8Array(words.buffer);
}

/** Fills [address, address + bytes) on the default stream; it repeats after a few MiB. `bytes` is whole elements. */
export function fillRandomly(driver, address, bytes, dtype) {
  const first = Math.min(bytes, mostPatternBytes);
  driver.native.write(address, pattern(dtype, first));
  for (let filled = first; filled < bytes; filled *= 2) {
    driver.native.copy(address + BigInt(filled), address, Math.min(filled, bytes - filled), 0n);
  }
}
