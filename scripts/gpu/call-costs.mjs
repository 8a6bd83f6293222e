// The cost of each call of the CUDA driver through this package's driver, and the largest reservation. One thread, nothing else
// running. Times in µs.

const TIB = 2 ** 40;
const MOST_PAGES = 512;

/** Median, 99th percentile and largest. */
export function percentiles(times) {
  const sorted = Float64Array.from(times).sort();
  const at = (part) => sorted[Math.floor(part * (sorted.length - 1))] ?? 0;
  return { p50Us: at(0.5), p99Us: at(0.99), maxUs: at(1), samples: sorted.length };
}

export function timeUs(call) {
  const begin = process.hrtime.bigint();
  call();
  return Number(process.hrtime.bigint() - begin) / 1e3;
}

/** Rows of { call, p50Us, p99Us, maxUs, samples }. */
export function measureCalls(driver) {
  const { native, info: { defaultPageBytes: pageBytes } } = driver;
  const pages = Math.min(MOST_PAGES, Math.floor(driver.memory().freeBytes / 2 / pageBytes));
  const bytes = pages * pageBytes;
  const times = new Map();
  const timed = (call, make) => {
    if (!times.has(call)) times.set(call, []);
    times.get(call).push(timeUs(make));
  };
  for (let round = 0; round < 3; round += 1) {
    let address;
    timed(`reserve ${pages} pages`, () => { address = native.reserve(bytes, pageBytes); });
    const at = (index) => address + BigInt(index * pageBytes);
    const handles = [];
    for (let index = 0; index < pages; index += 1) {
      timed('create a page', () => { handles.push(native.createPage(pageBytes, 0n)); });
    }
    handles.forEach((page, index) => timed('map a page', () => native.map(at(index), pageBytes, page)));
    handles.forEach((_, index) => timed('set access, one page', () => native.setAccess(at(index), pageBytes)));
    handles.forEach((_, index) => timed('unmap a page', () => native.unmap(at(index), pageBytes)));
    handles.forEach((page, index) => timed('map a page again', () => native.map(at(index), pageBytes, page)));
    timed(`set access, ${pages} pages in one call`, () => native.setAccess(address, bytes));
    timed(`unmap, ${pages} pages in one call`, () => native.unmap(address, bytes));
    handles.forEach((page) => timed('release a page', () => native.releasePage(page, pageBytes)));
    timed('free the reservation', () => native.freeReservation(address, bytes));
  }
  return [...times].map(([call, each]) => ({ call, ...percentiles(each) }));
}

/** Rows of { bytes, tebibytes, reserveUs, freeUs } or { bytes, tebibytes, refused }. */
export function measureReservations(driver) {
  const { native, info: { defaultPageBytes: pageBytes } } = driver;
  return [1, 12, 64, 100, 128].map((tebibytes) => {
    const bytes = tebibytes * TIB;
    let address;
    try {
      const reserveUs = timeUs(() => { address = native.reserve(bytes, pageBytes); });
      return { bytes, tebibytes, reserveUs, freeUs: timeUs(() => native.freeReservation(address, bytes)) };
    } catch (error) {
      return { bytes, tebibytes, refused: error.code };
    }
  });
}
