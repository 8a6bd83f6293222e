// What the server answers, by the declarations that its own compilation has made.

import type { ServerState } from '../../../dist/server/watch-state.js';

export type State = ServerState;
export type Slot = State['cache']['slots'][number];
export type Request = State['requests']['running'][number];
