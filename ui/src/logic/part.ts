/** The part of very long output that is laid out: browsers have no place for a million lines above each other. */

/** So many chunks of it: 4 million pixels where no line is wrapped, and browsers end at some 17 million. */
export const MOST_SHOWN = 4000;
/** By so many it moves. */
const STEP = MOST_SHOWN / 2;

export interface Part {
  from: number;
  /** The first that is not shown any more. */
  to: number;
}

/** The part that ends before this place; with null, at the end. */
export function partBefore(count: number, end: number | null): Part {
  const to = Math.min(count, Math.max(end ?? count, MOST_SHOWN));
  return { from: Math.max(0, to - MOST_SHOWN), to };
}

/** Where the part ends that is further up. */
export function up({ to }: Part): number {
  return Math.max(MOST_SHOWN, to - STEP);
}

/** Where the part ends that is further down; null where it is the end. */
export function down({ to }: Part, count: number): number | null {
  return to + STEP >= count ? null : to + STEP;
}

/** Where the part ends that shows this one: the same where it does already. */
export function around(part: Part, at: number, count: number): number | null {
  const end = at >= part.from && at < part.to ? part.to : at + STEP;
  return end >= count ? null : end;
}
