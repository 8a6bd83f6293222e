// The plan of gpu-check, as data: stages in order, each with sections that may run at the same time. The most important ones, which
// need no kernel, come first; what times copies has the GPU to itself. Kernels are checked in a process for each type and shape. The
// limits of all stages and of what is before them fit into nine minutes together.
//
// A stage `needs` what an earlier one `gives`: without a GPU none can run, without the kernels all others still do.

export const planSeconds = 505;
/** The most that check.mjs takes before the plan, in seconds: what machine it is, whether there is a cuBLAS, and where one is. */
export const before = { machine: 5, loader: 15, search: 5 };
export const dtypes = ['float16', 'bfloat16', 'float32'];

/** `programs` makes the command lines: vkv, script, measure, ava. `shapes` and `groups` are the test suite's own lists. */
export function makePlan({ programs: { vkv, script, measure, ava }, results, page, simulated, shapes, groups }) {
  // The simulated device is slow: build-test/kernels/cuda.test.js has every fifth shape at this scale.
  const [scale, every] = simulated ? ['0.08', 5] : ['1', 1];
  const kernelTest = (title, ...args) => ({ title, env: { VKV_TEST_SCALE: scale }, command: ava(...args) });
  // Those whose reference takes longest come first, so that the last end at about the same time.
  const checked = shapes.filter((_, index) => index % every === 0).sort((a, b) => b.dim * b.group - a.dim * a.group);
  return [
    { seconds: 5, sections: [{ title: 'vkv info', command: vkv('info') }] },
    { seconds: 15, gives: 'gpu', sections: [{ title: 'the GPU is opened', command: script('load.mjs', 'gpu') }] },
    { seconds: 35, needs: 'gpu', gives: 'kernels', sections: [{ title: 'the kernels are loaded', command: script('load.mjs', 'kernels') }] },
    { seconds: 45, needs: 'gpu', sections: [{ title: 'calls of the driver, growth beside work', command: measure('calls', 'growth') }] },
    { seconds: 60, needs: 'gpu', sections: [{ title: 'questions to the driver', command: measure('questions') }] },
    { seconds: 40, needs: 'gpu', sections: groups.map((group) => ({
      title: `contract on cuda: ${group}`, env: { VKV_CONTRACT_GROUP: group }, command: ava('build-test/contract/cuda.test.js'),
    })) },
    { seconds: 20, needs: 'gpu', sections: [{ title: 'side rows from the device', command: measure('side') }] },
    { seconds: 20, needs: 'gpu', sections: [{ title: 'copies of tiers', command: measure('tiers') }] },
    { seconds: 80, needs: 'kernels', sections: [
      kernelTest('dense kernels on cuda', 'build-test/kernels/dense-cuda.test.js'),
      kernelTest('attention of onnxruntime on cuda', 'build-test/onnx/device-operator.test.js'),
      ...checked.flatMap(({ dim, group }) => dtypes.map((dtype) => {
        const title = `${dtype}, head dim ${dim}, ${group} query heads to a KV head`;
        return { ...kernelTest(title, '--match', title, 'build-test/kernels/cuda.test.js'), dtype };
      })),
    ] },
    { seconds: 50, needs: 'kernels', sections: [{ title: 'how fast the kernels are', command: (wrong) => measure(...without(wrong), 'kernels') }] },
    { seconds: 55, needs: 'kernels', unlessWrong: 'float16', sections: [
      { title: 'contiguous slots against a block table', command: measure('block-table') },
    ] },
    { seconds: 15, needs: 'kernels', sections: [{ title: 'decoding beside copies of tiers', command: measure('tier-steps') }] },
    { seconds: 40, needs: 'kernels', sections: [
      { title: 'reference engine and matrix products', command: script('dense.mjs', '--json', results) },
    ] },
    { seconds: 20, needs: 'gpu', sections: [{ title: 'replay on cuda, every byte checked', command: vkv(
      'replay', '--generate', '200', '--driver', 'cuda', '--verify', 'full', ...(simulated ? ['--memory-bytes', '512MiB', '--limit', '8'] : []),
    ) }] },
    { seconds: 5, sections: [{ title: 'report', command: script('report.mjs', results, page) }] },
  ];
}

const without = (wrong) => (wrong.size > 0 ? ['--without', [...wrong].join(',')] : []);
