// An encoder of images: small grey pictures, cut into patches, each projected to a row that stands in a text like the embedding of a
// token. With weights made from a seed.

import { uniform } from './small-model.js';

const side = 64;
const patch = 8;

/** Rows of an image. */
export const imageTokens = (side / patch) ** 2;

/** A picture of stripes, another for each number: [row, column], from 0 to 1. */
export function stripes(number: number): Float32Array {
  return Float32Array.from({ length: side * side }, (_, at) => {
    const [row, column] = [Math.floor(at / side), at % side];
    return 0.5 + 0.5 * Math.sin((row * Math.cos(number) + column * Math.sin(number)) * (0.4 + 0.1 * number));
  });
}

/** Rows [patch, width] of a picture. */
export function encodeImage(pixels: Float32Array, width: number): Float32Array {
  const random = uniform(3);
  const weights = Float32Array.from({ length: patch * patch * width }, () => random() / patch);
  const rows = new Float32Array(imageTokens * width);
  for (let token = 0; token < imageTokens; token += 1) {
    const [top, left] = [Math.floor(token / (side / patch)) * patch, (token % (side / patch)) * patch];
    for (let pixel = 0; pixel < patch * patch; pixel += 1) {
      const value = pixels[(top + Math.floor(pixel / patch)) * side + left + (pixel % patch)]!;
      for (let index = 0; index < width; index += 1) rows[token * width + index]! += value * weights[pixel * width + index]!;
    }
  }
  return rows;
}
