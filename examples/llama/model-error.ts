// ModelError: a model's folder is not what this engine can run: says which file, what is wrong, and what to do.

export class ModelError extends Error {
  override readonly name = 'ModelError';
}
