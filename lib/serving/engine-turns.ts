// EngineTurns: one pass of an engine at a time, also where several schedulers, or runs, have the same one. A turn lasts until the
// engine has answered, however long its caller waits for it; a pass that was given up makes those behind it fail, not wait.

import type { ErrorDetails } from '../base/errors.js';
import { ChangeSignal } from '../device/change-signal.js';
import type { Engine } from './engine.js';

export interface Turn {
  /** Of the pass that was given up; undefined: it was not. */
  stalled: ErrorDetails['KV_ENGINE_STALLED'] | undefined;
  /** It is over, or was given up. */
  readonly changed: ChangeSignal;
}

const turns = new WeakMap<Engine, Turn>();

/** The engine's running pass, if it has one. */
export function turnOf(engine: Engine): Turn | undefined {
  return turns.get(engine);
}

/** The engine begins a pass. Returns what ends it. */
export function beginTurn(engine: Engine): { readonly turn: Turn; readonly end: () => void } {
  const turn: Turn = { stalled: undefined, changed: new ChangeSignal() };
  turns.set(engine, turn);
  return {
    turn,
    end: () => {
      turns.delete(engine);
      turn.changed.raise();
    },
  };
}

/** This pass was waited for too long. */
export function giveUpTurn(turn: Turn, stalled: ErrorDetails['KV_ENGINE_STALLED']): void {
  turn.stalled = stalled;
  turn.changed.raise();
}
