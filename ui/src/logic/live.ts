/** Lists that are read in pages, of which the first is asked for again and again. */

export interface Pages<T> {
  pages: T[][];
  /** The row that each page comes after. */
  pageParams: (T | undefined)[];
}

interface Reading {
  hasNextPage: boolean;
  isFetchingNextPage: boolean;
  /** Whether the last page that was asked for did not come. */
  isFetchNextPageError: boolean;
}

/** Whether what is further down is read by itself: after a failure only once somebody asks for it, lest it be asked for without end. */
export function readsOn({ hasNextPage, isFetchingNextPage, isFetchNextPageError }: Reading, isFull: boolean): boolean {
  return hasNextPage && !isFetchingNextPage && !isFetchNextPageError && !isFull;
}

interface Shape<T> {
  /** Of how many rows a whole page is. */
  limit: number;
  /** So many rows are kept. */
  most: number;
  idOf: (row: T) => string;
}

/**
 * Puts a newer first page before what is known. Rows of the old list that the new page must have had are gone. Where more
 * came than a page has, the list starts again with that page: what lies between is fetched as what is further down.
 */
export function withHead<T>(known: Pages<T>, head: T[], { limit, most, idOf }: Shape<T>): Pages<T> {
  const rows = known.pages.flat();
  const last = head.at(-1);
  const at = last === undefined || head.length < limit ? -1 : rows.findIndex((row) => idOf(row) === idOf(last));
  if (at < 0) return { pages: [head], pageParams: [undefined] };
  // Everything after the last row of the head, in the old order, is still there.
  const ids = new Set(head.map(idOf));
  const merged = [...head, ...rows.slice(at + 1).filter((row) => !ids.has(idOf(row)))];
  if (merged.length > most) return { pages: [merged.slice(0, most)], pageParams: [undefined] };
  // The last page keeps its length: by that it is known whether there is more.
  const end = merged.length - (known.pages.at(-1)?.length ?? 0);
  const whole = known.pages.length > 1 && end >= 0 ? [merged.slice(0, end), merged.slice(end)] : [merged];
  return { pages: whole, pageParams: known.pageParams.slice(0, whole.length) };
}

/** All rows, page by page, as long as pages are full, and `most` at the most. */
export async function allPages<T>(page: (after: T | undefined) => Promise<T[]>, limit: number, most: number): Promise<T[]> {
  const rows: T[] = [];
  for (;;) {
    const next = await page(rows.at(-1));
    rows.push(...next);
    if (next.length < limit || rows.length >= most) return rows;
  }
}
