// How fast matrix products are on the device: by our own kernel and by cuBLAS, where there is one. Few rows are held against the
// device's own copy, since each weight is read once; many rows are given in floating-point operations per second. Each time is
// that of many products on one stream, from the first to the end of the last. On a simulated device everything is small, and
// means nothing.

const launches = 20;

function timeUs(driver, run) {
  run();
  driver.native.synchronizeStream(0n);
  const begin = process.hrtime.bigint();
  for (let launch = 0; launch < launches; launch += 1) run();
  driver.native.synchronizeStream(0n);
  return Number(process.hrtime.bigint() - begin) / 1e3 / launches;
}

/** Rows for a table. */
export function measureProducts(driver, { DenseKernels, DeviceMemory, dtypeBytes }) {
  const isSmall = driver.memory().totalBytes < 8 * 2 ** 30;
  const [outputs, inputs, copies] = isSmall ? [64, 64, 2] : [8192, 4096, 4]; // so many matrices, that no cache holds them
  const counts = isSmall ? [1, 9] : [1, 2, 4, 8, 16, 64, 512, 4096];
  const most = counts.at(-1);
  const weights = new DeviceMemory({ driver, bytes: 4 * copies * outputs * inputs });
  const rows = new DeviceMemory({ driver, bytes: 4 * most * (inputs + outputs) });
  for (const { address, bytes } of [weights, rows]) driver.native.fill(address, 0, bytes, 0n);
  const bytes = Math.floor(weights.bytes / 2);
  const copyUs = timeUs(driver, () => driver.native.copy(weights.address + BigInt(bytes), weights.address, bytes, 0n));
  const copyGBPerS = (2 * bytes) / copyUs / 1e3;
  const output = rows.address + BigInt(4 * most * inputs);
  const table = [];
  for (const cublas of ['off', process.env.VKV_CUBLAS || 'auto']) {
    const dense = new DenseKernels({ driver, cublas });
    for (const dtype of dense.target.startsWith('cublas') || cublas === 'off' ? ['bfloat16', 'float16', 'float32'] : []) {
      const size = BigInt(dtypeBytes(dtype) * outputs * inputs);
      for (const count of counts) {
        let turn = 0;
        const us = timeUs(driver, () => {
          const data = weights.address + size * BigInt(turn++ % copies);
          dense.multiply(rows.address, count, { weight: { data, dtype, outputs, inputs }, output });
        });
        const weightsGBPerS = Number(size) / us / 1e3;
        table.push({
          'by': dense.target, dtype, 'rows': count, us, 'weights GB/s': weightsGBPerS,
          'of the copy\'s traffic': weightsGBPerS / copyGBPerS, 'TFLOP/s': (2 * count * outputs * inputs) / us / 1e6,
        });
      }
    }
    dense.close();
  }
  weights.close();
  rows.close();
  return { outputs, inputs, copyGBPerS, table };
}
