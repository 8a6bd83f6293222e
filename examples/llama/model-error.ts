// ModelError: this engine cannot run a model's folder. The message has the file, what is wrong, and what to do.

export class ModelError extends Error {
  override readonly name = 'ModelError';
}
