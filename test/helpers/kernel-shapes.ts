// The shapes of attention by which every CUDA kernel of a type is chosen: head dims that have kernels of their own, with as many
// query heads to a KV head as one block takes and more, and dims that have not.

export const kernelShapes: readonly { readonly dim: number; readonly group: number }[] = [
  ...[64, 128, 256].flatMap((dim) => [1, 4, 8].map((group) => ({ dim, group }))),
  { dim: 13, group: 3 }, { dim: 80, group: 5 }, { dim: 250, group: 1 }, { dim: 128, group: 11 },
];
