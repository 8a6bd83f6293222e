// Runs a plan (plan.mjs): its stages one after another, the sections of a stage at the same time, as many as `atOnce`. When a section
// fails, only the stages that need what it gives are left out.

/** What a process that checks kernels takes of the GPU's memory, at most. */
const processMiB = 1536;

/**
 * How many sections may use the GPU at the same time, at least 1: as many as there are processors, and as its memory has room for
 * where that is known; 1 where the GPU takes one process at a time.
 */
export function sectionsAtOnce({ processors, memoryMiB = Infinity, canShare }) {
  return canShare ? Math.max(1, Math.min(processors, Math.floor(memoryMiB / processMiB))) : 1;
}

/** Resolves to whether every section passed. `sections` is a Sections. */
export async function runPlan(plan, sections, { atOnce }) {
  const given = new Set();
  const wrong = new Set();
  for (const { seconds, needs, gives, unlessWrong, sections: planned } of plan) {
    const missing = needs !== undefined && !given.has(needs) ? `without ${needs}` : wrong.has(unlessWrong) ? `${unlessWrong} is wrong` : undefined;
    if (missing !== undefined) {
      for (const { title } of planned) sections.skip(title, missing);
      continue;
    }
    const ready = planned.map(({ command, ...section }) => ({
      ...section, command: typeof command === 'function' ? command(wrong) : command,
    }));
    const runs = await runStage(ready, sections, seconds, atOnce);
    runs.forEach(({ passed, isLate }, index) => {
      const { dtype } = ready[index];
      if (!passed && !isLate && dtype !== undefined) wrong.add(dtype); // a late one says nothing of its kernels
    });
    if (gives !== undefined && runs.every(({ passed }) => passed)) given.add(gives);
  }
  return sections.conclude();
}

/** Starts the sections in order, `atOnce` at a time; each ends within the stage's seconds. Resolves to their outcomes in that order. */
async function runStage(planned, sections, seconds, atOnce) {
  const { clock } = sections;
  const endMs = clock.now() + seconds * 1e3;
  const lanes = Math.min(atOnce, planned.length);
  const waiting = planned.entries();
  const runs = [];
  const runNext = async () => {
    for (const [index, section] of waiting) {
      runs[index] = await sections.run({ ...section, seconds: (endMs - clock.now()) / 1e3, beside: lanes > 1 });
    }
  };
  await Promise.all(Array.from({ length: lanes }, runNext));
  return runs;
}
