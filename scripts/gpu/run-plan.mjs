// Runs a plan (plan.mjs): its stages one after another, the sections of a stage at the same time where the GPU may be shared. When a
// section fails, only the stages that need what it gives are left out.

/** Resolves to whether every section passed. `sections` is a Sections. */
export async function runPlan(plan, sections, { canShare = true } = {}) {
  const given = new Set();
  const wrong = [];
  const again = [];
  for (const { seconds, needs, gives, unlessWrong, sections: planned } of plan) {
    const missing = needs !== undefined && !given.has(needs) ? `without ${needs}` : wrong.includes(unlessWrong) ? `${unlessWrong} is wrong` : undefined;
    if (missing !== undefined) {
      for (const { title } of planned) sections.skip(title, missing);
      continue;
    }
    const ready = planned.map(({ command, ...section }) => ({
      ...section, command: typeof command === 'function' ? command(wrong) : command,
    }));
    const runs = await runStage(ready, sections, seconds, canShare);
    runs.forEach(({ passed }, index) => {
      if (passed) return;
      if (ready[index].dtype !== undefined) wrong.push(ready[index].dtype);
      again.push(...(ready[index].again?.() ?? []));
    });
    if (gives !== undefined && runs.every(({ passed }) => passed)) given.add(gives);
  }
  if (again.length > 0 && given.has('kernels')) await runStage(again, sections, Infinity, canShare);
  return sections.conclude();
}

/** Sections that run at the same time each have the stage's seconds; one after another they share them. */
async function runStage(planned, sections, seconds, canShare) {
  if (planned.length === 1) return [await sections.run({ ...planned[0], seconds: Math.min(seconds, planned[0].seconds ?? seconds) })];
  if (canShare) return Promise.all(planned.map((section) => sections.run({ ...section, seconds: Math.min(seconds, section.seconds ?? seconds), beside: true })));
  const runs = [];
  const end = performance.now() + seconds * 1e3;
  for (const section of planned) {
    runs.push(await sections.run({ ...section, seconds: Math.min(section.seconds ?? seconds, (end - performance.now()) / 1e3) }));
  }
  return runs;
}
