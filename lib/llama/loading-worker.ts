// The thread of loadOnThread: loads a model as any thread does, and answers with its config and weights, or with what failed. Arrays are in
// memory that threads share. It stays until it is ended: the handles of mapped files are open until then.

import { parentPort, workerData } from 'node:worker_threads';

import { DenseKernels } from '../index.js';
import { loadModel, type LoadRequest, type SentModel } from './load-model.js';
import { sentError, type SentError } from './model-error.js';

function load(): SentModel | SentError {
  const { model, kind, options } = workerData as LoadRequest;
  try {
    const { config, weights: { files, ...weights }, copiedFiles } = loadModel(model, kind, new DenseKernels(options));
    const sent = files.map((file) => file.sent()).filter((file) => file !== undefined);
    return { config, weights, files: sent, copiedFiles };
  } catch (error) {
    return sentError(error);
  }
}

const port = parentPort!;
port.on('message', () => {}); // keeps the thread
port.postMessage(load());
