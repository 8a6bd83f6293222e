// Workloads to compare eviction policies with: what a prompt consists of, as ids of blocks of HASH_BLOCK_TOKENS tokens, equal
// exactly where the text up to there is. Each is a way of using a model that reuses text differently. A seed gives the
// same requests on every machine. No lengths of answers, no times: the order is all that an eviction policy sees.

import { Random } from '#internal/base/random.js';

export interface EvictionWorkload {
  readonly name: string;
  /** One sentence for the table's legend. */
  readonly about: string;
  /** The prompts in order, each a list of block ids. */
  requests(count: number, seed: number): Int32Array[];
}

/** A source of prompts: called once for each request. */
type Speaker = (random: Random, ids: BlockIds) => readonly number[];

/** Gives out ids that were never given before. */
class BlockIds {
  #next = 0;

  fresh(count: number): number[] {
    return Array.from({ length: Math.max(0, Math.round(count)) }, () => this.#next++);
  }
}

/** Conversations: each turn repeats what was said, adds a little, and comes after a pause of very different lengths. */
function chat(): Speaker {
  const waiting: { text: readonly number[]; turnsLeft: number; due: number }[] = [];
  let system: readonly number[] | undefined;
  let now = 0;
  return (random, ids) => {
    now += 1;
    system ??= ids.fresh(3);
    const at = random.chance(0.85) ? waiting.findIndex(({ due }) => due <= now) : -1;
    const found = at < 0 ? undefined : waiting.splice(at, 1)[0];
    const text = [...(found?.text ?? system), ...ids.fresh(1 + random.integer(found ? 4 : 20))];
    const turnsLeft = found ? found.turnsLeft - 1 : Math.floor(random.exponential(5));
    if (turnsLeft > 0) waiting.push({ text, turnsLeft, due: now + random.lognormal(80, 1.2) });
    return text;
  };
}

/** Agents: a few long system prompts; each task extends one step after step, quickly, and is then over. */
function agents(): Speaker {
  const running: { text: readonly number[]; stepsLeft: number }[] = [];
  let prompts: (readonly number[])[] = [];
  return (random, ids) => {
    if (prompts.length === 0) prompts = Array.from({ length: 10 }, () => ids.fresh(20 + random.integer(40)));
    if (running.length < 30) {
      const prompt = prompts[Math.floor(prompts.length * random.next() ** 2)]!; // some agents have more to do
      running.push({ text: [...prompt, ...ids.fresh(1 + random.integer(3))], stepsLeft: 3 + random.integer(20) });
    }
    const task = running[random.integer(running.length)]!;
    const text = task.text;
    task.text = [...text, ...ids.fresh(1 + random.integer(6))];
    task.stepsLeft -= 1;
    if (task.stepsLeft === 0) running.splice(running.indexOf(task), 1);
    return text;
  };
}

/** Documents: long texts that are mostly read once; some are asked about a few times more, each time something else. */
function documents(): Speaker {
  const open: { text: readonly number[]; questionsLeft: number }[] = [];
  return (random, ids) => {
    const again = open.length > 0 && random.chance(0.4) ? random.integer(open.length) : -1;
    if (again >= 0) {
      const document = open[again]!;
      document.questionsLeft -= 1;
      if (document.questionsLeft <= 0) open.splice(again, 1);
      return [...document.text, ...ids.fresh(1)];
    }
    const text = ids.fresh(Math.min(200, random.lognormal(25, 0.8) + 1));
    if (random.chance(0.25)) open.push({ text, questionsLeft: 1 + random.integer(6) });
    if (open.length > 60) open.splice(0, 1);
    return [...text, ...ids.fresh(1)];
  };
}

/** A scan: conversations, and now and then a batch of long prompts that share nothing and never come back. */
function scan(): Speaker {
  const talk = chat();
  let left = 0;
  return (random, ids) => {
    if (left === 0 && random.chance(1 / 400)) left = 60 + random.integer(80);
    if (left === 0) return talk(random, ids);
    left -= 1;
    return ids.fresh(40 + random.integer(60));
  };
}

/** A round: the same long prompts one after the other, again and again. The worst case of LRU. */
function round(): Speaker {
  const talk = chat();
  let prompts: (readonly number[])[] = [];
  let turn = 0;
  return (random, ids) => {
    if (prompts.length === 0) prompts = Array.from({ length: 150 }, () => ids.fresh(10 + random.integer(40)));
    if (random.chance(0.3)) return talk(random, ids);
    turn += 1;
    return [...prompts[turn % prompts.length]!, ...ids.fresh(1)];
  };
}

/** Fashion: for a while a few old texts return among many that never do; then the new ones return, and the old ones do not. */
function fashion(): Speaker {
  const recent: (readonly number[])[] = [];
  let popular: (readonly number[])[] = [];
  let now = 0;
  return (random, ids) => {
    now += 1;
    const isOfOld = Math.floor(now / 1_000) % 2 === 0;
    if (now % 2_000 === 1) popular = Array.from({ length: 60 }, () => ids.fresh(10 + random.integer(40)));
    if (isOfOld && random.chance(0.5)) return [...popular[random.integer(popular.length)]!, ...ids.fresh(1)];
    if (!isOfOld && recent.length > 0 && random.chance(0.7)) return [...recent[random.integer(recent.length)]!, ...ids.fresh(1)];
    const text = ids.fresh(10 + random.integer(40));
    recent.push(text);
    if (recent.length > 40) recent.splice(0, 1);
    return [...text, ...ids.fresh(1)];
  };
}

/** A library: texts of a fixed collection by popularity, which drifts. */
function library(): Speaker {
  let texts: (readonly number[])[] = [];
  return (random, ids) => {
    if (texts.length === 0) texts = Array.from({ length: 1_500 }, () => ids.fresh(random.lognormal(15, 0.7) + 1));
    if (random.chance(0.02)) {
      const from = random.integer(texts.length);
      const to = random.integer(texts.length);
      [texts[from], texts[to]] = [texts[to]!, texts[from]!];
    }
    const rank = Math.floor(texts.length ** random.next()) - 1; // Zipf with exponent 1
    return [...texts[rank]!, ...ids.fresh(1)];
  };
}

/** A search: from the state of a problem several continuations are tried; the best few are continued, the others are dropped. */
function search(): Speaker {
  let problems: { beam: (readonly number[])[]; tried: (readonly number[])[]; depth: number }[] = [];
  return (random, ids) => {
    if (problems.length < 12) problems = [...problems, { beam: [ids.fresh(8 + random.integer(30))], tried: [], depth: 0 }];
    const problem = problems[random.integer(problems.length)]!;
    const base = problem.beam[random.integer(problem.beam.length)]!;
    const text = [...base, ...ids.fresh(1 + random.integer(3))];
    problem.tried.push(text);
    if (problem.tried.length >= 6) {
      problem.beam = problem.tried.filter(() => random.chance(0.35)).slice(0, 2);
      if (problem.beam.length === 0) problem.beam = [problem.tried[0]!];
      problem.tried = [];
      problem.depth += 1;
      if (problem.depth > 10) problems = problems.filter((other) => other !== problem);
    }
    return text;
  };
}

/** Each request from one of the others. */
function mixed(): Speaker {
  const speakers = [chat(), chat(), agents(), documents(), documents()];
  return (random, ids) => speakers[random.integer(speakers.length)]!(random, ids);
}

function workload(name: string, about: string, speaker: () => Speaker): EvictionWorkload {
  return {
    name,
    about,
    requests(count, seed) {
      const random = new Random(seed);
      const ids = new BlockIds();
      const speak = speaker();
      return Array.from({ length: count }, () => Int32Array.from(speak(random, ids)));
    },
  };
}

export const evictionWorkloads: readonly EvictionWorkload[] = [
  workload('chat', 'conversations of a few turns, over one system prompt', chat),
  workload('agents', 'tasks of many quick steps, over ten long system prompts', agents),
  workload('documents', 'long texts, most of them read once, some asked about a few times', documents),
  workload('scan', 'chat, and sometimes a flood of long prompts that never return', scan),
  workload('round', 'chat, and 150 long prompts always in the same order', round),
  workload('fashion', 'by turns of 1,000: a few old texts return, or the new ones do', fashion),
  workload('mixed', 'two of chat, one of agents, two of documents, at random', mixed),
  workload('library', 'texts of a collection by drifting popularity', library),
  workload('search', 'branching continuations of which few are pursued', search),
];
