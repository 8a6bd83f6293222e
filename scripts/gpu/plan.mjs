// The plan of gpu-check, as data: stages in order, each with sections that may run at the same time. The most important ones, which
// need no kernel, come first; what times copies has the GPU to itself; the last repeats failed checks one by one in the seconds that
// are left. The limits of all stages and of what is before them fit into nine minutes together.
//
// A stage `needs` what an earlier one `gives`: without a GPU none can run, without the kernels all others still do.

export const planSeconds = 505;
/** The most that check.mjs takes before the plan, in seconds: what machine it is, whether there is a cuBLAS, and where one is. */
export const before = { machine: 5, loader: 15, search: 5 };
export const dtypes = ['float16', 'bfloat16', 'float32'];

/** `programs` makes the command lines: vkv, script, measure, ava. `shapes` and `groups` are the test suite's own lists. */
export function makePlan({ programs: { vkv, script, measure, ava }, results, page, simulated, shapes, groups }) {
  const scaled = { VKV_TEST_SCALE: simulated ? '0.04' : '1' };
  const kernelTest = (title, seconds, ...args) => ({ title, seconds, env: scaled, command: ava(...args) });
  return [
    { seconds: 5, sections: [{ title: 'vkv info', command: vkv('info') }] },
    { seconds: 15, gives: 'gpu', sections: [{ title: 'the GPU is opened', command: script('load.mjs', 'gpu') }] },
    { seconds: 35, needs: 'gpu', gives: 'kernels', sections: [{ title: 'the kernels are loaded', command: script('load.mjs', 'kernels') }] },
    { seconds: 60, needs: 'gpu', sections: [{ title: 'calls of the driver, growth beside work', command: measure('calls', 'growth') }] },
    { seconds: 60, needs: 'gpu', sections: [{ title: 'questions to the driver', command: measure('questions') }] },
    { seconds: 40, needs: 'gpu', sections: groups.map((group) => ({
      title: `contract on cuda: ${group}`, env: { VKV_CONTRACT_GROUP: group }, command: ava('build-test/contract/cuda.test.js'),
    })) },
    { seconds: 20, needs: 'gpu', sections: [{ title: 'side rows from the device', command: measure('side') }] },
    { seconds: 20, needs: 'gpu', sections: [{ title: 'copies of tiers', command: measure('tiers') }] },
    { seconds: 80, needs: 'kernels', gives: 'checked kernels', sections: [
      ...dtypes.map((dtype) => ({
        ...kernelTest(`${dtype} kernels on cuda`, 80, '--match', `${dtype}, *`, 'build-test/kernels/cuda.test.js'), dtype,
        again: () => shapes.map(({ dim, group }) => {
          const title = `${dtype}, head dim ${dim}, ${group} query heads to a KV head`;
          return kernelTest(`by itself: ${title}`, 40, '--match', title, 'build-test/kernels/cuda.test.js');
        }),
      })),
      kernelTest('dense kernels on cuda', 80, 'build-test/kernels/dense-cuda.test.js'),
    ] },
    { seconds: 50, needs: 'kernels', sections: [{ title: 'how fast the kernels are', command: (wrong) => measure(...without(wrong), 'kernels') }] },
    { seconds: 55, needs: 'kernels', unlessWrong: 'float16', sections: [
      { title: 'contiguous slots against a block table', command: measure('block-table') },
    ] },
    { seconds: 40, needs: 'kernels', sections: [
      { title: 'reference engine and matrix products', command: script('dense.mjs', '--json', results) },
    ] },
    { seconds: 20, needs: 'gpu', sections: [{ title: 'replay on cuda, every byte checked', command: vkv(
      'replay', '--generate', '200', '--driver', 'cuda', '--verify', 'full', ...(simulated ? ['--memory-bytes', '512MiB', '--limit', '8'] : []),
    ) }] },
    { seconds: 5, sections: [{ title: 'report', command: script('report.mjs', results, page) }] },
  ];
}

const without = (wrong) => (wrong.length > 0 ? ['--without', wrong.join(',')] : []);
