/** Lists that are read in pages, of which the first is asked for again and again. */

/** Puts a newer first page before what is known. Rows of the old list that the new page must have had are gone. */
export function mergeHead<T>(known: T[], head: T[], limit: number, idOf: (row: T) => string): T[] {
  const ids = new Set(head.map(idOf));
  const last = head.at(-1);
  if (last === undefined || head.length < limit) return head;
  // Everything after the last row of the head, in the old order, is still there.
  const at = known.findIndex((row) => idOf(row) === idOf(last));
  const rest = at >= 0 ? known.slice(at + 1) : known;
  return [...head, ...rest.filter((row) => !ids.has(idOf(row)))];
}
