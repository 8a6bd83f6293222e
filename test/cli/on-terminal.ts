// Loaded before a command (`NODE_OPTIONS=--require`): stderr is a terminal to it.

Object.defineProperty(process.stderr, 'isTTY', { value: true });
