/** Many calls, of which few are under way at the same time. */

/** What a call gives for each of these, in their order; fails as soon as one does. */
export async function eachOf<T, R>(items: T[], atOnce: number, call: (item: T) => Promise<R>): Promise<R[]> {
  const found: R[] = [];
  const rest = items.entries();
  let hasFailed = false;
  const work = async () => {
    for (const [at, item] of rest) {
      if (hasFailed) return;
      found[at] = await call(item);
    }
  };
  try {
    await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, work));
  } catch (error) {
    hasFailed = true;
    throw error;
  }
  return found;
}
