// Whether the stack has room for a call that must not end in its middle. Arguments lie on the stack, and V8 looks
// whether they have room before it puts them there: a call of nothing, with many, asks without a change.

/**
 * Bytes that a public call needs at most, where none of its functions is compiled yet. Functions of its user's that it
 * calls see to themselves.
 */
const callBytes = 32_768;
/** The same of a step that maps, copies and retires nothing. */
const stepBytes = 2048;

const callRoom: readonly number[] = new Array<number>(callBytes / 8).fill(0);
const stepRoom: readonly number[] = new Array<number>(stepBytes / 8).fill(0);

function useNothing(): void { /* its arguments have had room */ }

/**
 * Before a call changes anything: throws the RangeError of a full stack where it might come in the middle of the
 * change, and leave counts wrong.
 */
export function checkStack(): void {
  Reflect.apply(useNothing, undefined, callRoom);
}

/** The same for the hot path: a sixteenth of the room, and of the time. */
export function checkStackOfStep(): void {
  Reflect.apply(useNothing, undefined, stepRoom);
}
