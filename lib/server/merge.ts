// merge: several async iterators as one, each value as it comes. One value of each is fetched ahead, and no more, until it is read.

/** Yields what all yield. Throws what the first of them throws; leaves all when it is left. */
export async function* merge<T>(sources: readonly AsyncIterator<T, void, undefined>[]): AsyncGenerator<T, void, undefined> {
  const ready: (() => IteratorResult<T, void>)[] = [];
  const owners: AsyncIterator<T, void, undefined>[] = [];
  let wake = (): void => {};
  const fetch = (source: AsyncIterator<T, void, undefined>): void => {
    const put = (take: () => IteratorResult<T, void>): void => {
      ready.push(take);
      owners.push(source);
      wake();
    };
    source.next().then((result) => { put(() => result); }, (error: unknown) => { put(() => { throw error; }); });
  };
  try {
    for (const source of sources) fetch(source);
    for (let open = sources.length; open > 0;) {
      if (ready.length === 0) await new Promise<void>((resolve) => { wake = resolve; });
      const [take, source] = [ready.shift()!, owners.shift()!];
      const { done, value } = take();
      if (done === true) {
        open -= 1;
        continue;
      }
      yield value;
      fetch(source);
    }
  } finally {
    for (const source of sources) void source.return?.().catch(() => {});
  }
}
