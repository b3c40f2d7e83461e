/** Output of a job as it is kept while it is shown: how it is read on, how what is missing comes into it, and how much is kept. */

import type { LogEvent } from "../api/types";
import { before, behind, type Chunk, type Lines, type Most, newest, NO_LINES } from "./chunks";
import { unknown } from "./lines";

export interface Page {
  /** Newest first. */
  logs: LogEvent[];
  /** By which older events are read; unset where there are none. */
  next_token: string | null;
}

/** How output is asked for: newest first, since only so a store need not read all that is there to give what is new. */
export interface Asked {
  descending: true;
  /** Only what was printed after this. */
  start_time?: string;
  next_token?: string;
}

/** Output that is not read yet. */
export interface Gap {
  /** How the newest page of it is asked for. */
  asked: Asked;
  /** The events right before it, which may be said again. */
  seam: LogEvent[];
}

/** So many pages of new output are read at once. */
const MOST_PAGES = 5;

/** Events, oldest first, and what is missing between those that were known and them. */
interface Newer {
  events: LogEvent[];
  gap: Gap | null;
}

/** Events that came after those that are known, oldest first: of those that came, so many of the newest as are read at once. */
export async function newer(ask: (asked: Asked) => Promise<Page>, known: LogEvent[]): Promise<Newer> {
  const last = known.at(-1);
  // What was printed in the last millisecond is asked for again: more may have come since.
  const since = last === undefined ? null : Date.parse(last.timestamp) - 1;
  const asked: Asked = { descending: true, ...(since !== null && { start_time: new Date(since).toISOString() }) };
  const seam = since === null ? [] : known.filter((event) => Date.parse(event.timestamp) > since);
  const found: LogEvent[] = [];
  let rest: Asked | null = asked;
  for (let pages = 0; pages < MOST_PAGES && rest !== null; pages += 1) {
    const page: Page = await ask(rest);
    found.push(...page.logs);
    const isJoined = page.logs.length === 0 || isAtSeam(found, known, seam);
    rest = isJoined || page.next_token === null ? null : { ...asked, next_token: page.next_token };
  }
  return { events: unknown(found.toReversed(), known), gap: rest && { asked: rest, seam } };
}

/** Whether events reach back to those that are known, of which these are the last. */
function isAtSeam(found: LogEvent[], known: LogEvent[], seam: LogEvent[]): boolean {
  return seam.length > 0 && found.length - unknown(found, known).length >= seam.length;
}

const MOST: Most = { lines: 1_000_000, characters: 200_000_000 };

export interface Kept {
  lines: Lines;
  /** Whether older lines were left out, since there were too many. */
  isCut: boolean;
}

export const NOTHING: Kept = { lines: NO_LINES, isCut: false };

/** What a first page shows. */
export function begun(page: Page): Kept {
  const gap: Gap | null = page.next_token === null ? null : { asked: { descending: true, next_token: page.next_token }, seam: [] };
  return { lines: behind(NO_LINES, page.logs.toReversed(), gap), isCut: false };
}

/** With newer events, oldest first, behind it, and what is missing before them. */
export function withNewer(kept: Kept, { events, gap }: Newer, most = MOST): Kept {
  return limited({ ...kept, lines: behind(kept.lines, events, gap) }, most);
}

/** With a page of what was missing before a chunk, the newest of it. */
export function withMissing(kept: Kept, id: number, { logs, next_token }: Page, most = MOST): Kept {
  const at = kept.lines.chunks.findIndex((chunk) => chunk.id === id);
  const gap = kept.lines.chunks[at]?.gap;
  if (!gap) return kept;
  const isOver = next_token === null || next_token === gap.asked.next_token || isAtSeam(logs, gap.seam, gap.seam);
  const rest = isOver ? null : { ...gap, asked: { ...gap.asked, next_token } };
  return limited({ ...kept, lines: before(kept.lines, at, unknown(logs.toReversed(), gap.seam), rest) }, most);
}

/** The last chunk before which something is missing that can be read. */
export function lastGap({ lines }: Kept): Chunk | undefined {
  return lines.chunks.findLast((chunk) => chunk.gap !== null);
}

function limited(kept: Kept, most: Most): Kept {
  const lines = newest(kept.lines, most);
  return lines === kept.lines ? kept : { lines, isCut: true };
}
