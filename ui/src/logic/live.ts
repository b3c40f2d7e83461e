/** Lists that are read in pages, of which the first is asked for again and again. */

/** What the key of all pages of a list ends with. What changes comes with its first page, which has a key of its own. */
export const PAGES = "pages";

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

export interface Shape<T> {
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
  return paged(merged, known);
}

/** Rows as pages, where these are known: the last page keeps its length, by which it is known whether there is more. */
function paged<T>(rows: T[], known: Pages<T>): Pages<T> {
  const end = rows.length - (known.pages.at(-1)?.length ?? 0);
  const pages = known.pages.length > 1 && end >= 0 ? [rows.slice(0, end), rows.slice(end)] : [rows];
  return { pages, pageParams: known.pageParams.slice(0, pages.length) };
}

/** The first of these that is further down than the first page, and the row that stands before it. */
export function firstFurther<T>({ pages }: Pages<T>, ids: ReadonlySet<string>, { limit, idOf }: Shape<T>): { row: T; after: T } | null {
  const rows = pages.flat();
  const at = rows.findIndex((row, index) => index >= limit && ids.has(idOf(row)));
  const [after, row] = [rows[at - 1], rows[at]];
  return after === undefined || row === undefined ? null : { row, after };
}

/** Puts a newer page in the place of the rows that stand after this one. Rows that it must have had are gone. */
export function withFurther<T>(known: Pages<T>, after: T, page: T[], { limit, idOf }: Shape<T>): Pages<T> {
  const rows = known.pages.flat();
  const at = rows.findIndex((row) => idOf(row) === idOf(after));
  if (at < 0) return known;
  const merged = [...rows.slice(0, at + 1), ...page];
  const last = page.at(-1);
  const end = last === undefined ? -1 : rows.findIndex((row) => idOf(row) === idOf(last));
  if (end > at && page.length >= limit) return paged([...merged, ...rows.slice(end + 1)], known);
  // It reaches the end of the list, or of what is known of it. Elsewhere there is no telling how it joins.
  return page.length < limit || rows.length - at <= limit ? { pages: [merged], pageParams: [undefined] } : known;
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
