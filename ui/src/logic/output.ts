/** Output of a job as it is kept while it is shown: how it is read on, how older output comes before it, and how much is kept. */

import type { LogEvent } from "../api/types";
import { append, type Line, prepend, unknown } from "./lines";

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

/** So many pages of new output are read at once. */
const MOST_PAGES = 5;

/**
 * Events that came after those that are known, oldest first; null where more came than is read at once: then one begins
 * again at the end. `known` has the last events, oldest first.
 */
export async function newer(ask: (asked: Asked) => Promise<Page>, known: LogEvent[]): Promise<LogEvent[] | null> {
  const last = known.at(-1);
  // What was printed in the last millisecond is asked for again: more may have come since.
  const since = last === undefined ? null : Date.parse(last.timestamp) - 1;
  const asked: Asked = { descending: true, ...(since !== null && { start_time: new Date(since).toISOString() }) };
  const seam = since === null ? 0 : known.filter((event) => Date.parse(event.timestamp) > since).length;
  const found: LogEvent[] = [];
  let token: string | null = null;
  for (let pages = 0; pages < MOST_PAGES; pages += 1) {
    const page: Page = await ask(token === null ? asked : { ...asked, next_token: token });
    found.push(...page.logs);
    token = page.next_token;
    const fresh = unknown(found.toReversed(), known);
    const isJoined = seam > 0 && found.length - fresh.length >= seam;
    if (isJoined || token === null || page.logs.length === 0) return fresh;
  }
  return null;
}

/** So much is kept: lines, and characters of them. */
interface Most {
  lines: number;
  characters: number;
}

const MOST: Most = { lines: 50_000, characters: 20_000_000 };

/** How many of the last lines are kept. */
function room(lines: Line[], most: Most): number {
  let characters = 0;
  let count = 0;
  for (const { text } of lines.toReversed()) {
    characters += text.length;
    if (count >= most.lines || characters > most.characters) break;
    count += 1;
  }
  return count;
}

export interface Kept {
  /** Oldest first. */
  lines: Line[];
  /** By which older lines are read; unset where there are none, or no more are kept. */
  older: string | null;
  /** Whether older lines were left out, since there were too many. */
  isCut: boolean;
}

export const NOTHING: Kept = { lines: [], older: null, isCut: false };

/** What a first page shows. */
export function begun(page: Page): Kept {
  const lines: Line[] = [];
  append(lines, page.logs.toReversed());
  return { lines, older: page.next_token, isCut: false };
}

/** With newer events, oldest first, behind it. */
export function withNewer(kept: Kept, events: LogEvent[], most = MOST): Kept {
  const lines = kept.lines.slice();
  const open = lines.at(-1);
  if (open) lines[lines.length - 1] = { ...open };
  append(lines, events);
  return limited({ ...kept, lines }, most);
}

/** With a page of older events before it. */
export function withOlder(kept: Kept, page: Page, most = MOST): Kept {
  return limited({ ...kept, lines: prepend(kept.lines, page.logs.toReversed()), older: page.next_token }, most);
}

/** Without the oldest lines, where there are too many: then none are read that are older yet. */
function limited(kept: Kept, most: Most): Kept {
  const count = room(kept.lines, most);
  return count < kept.lines.length ? { lines: kept.lines.slice(kept.lines.length - count), older: null, isCut: true } : kept;
}
