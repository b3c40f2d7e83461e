/** Lines of output by the million: in chunks that are never changed themselves, so that what is kept, drawn or known of the others stays. */

import type { LogEvent } from "../api/types";
import { append, joined, type Line } from "./lines";
import type { Gap } from "./output";

/** So many lines a chunk has at most. */
export const CHUNK = 50;

export interface Chunk {
  /** The same while lines are added to it. */
  readonly id: number;
  readonly lines: readonly Line[];
  readonly characters: number;
  /** What is missing before it, as far as is known. */
  readonly gap: Gap | null;
}

export interface Lines {
  /** Oldest first. */
  readonly chunks: readonly Chunk[];
  readonly count: number;
  readonly characters: number;
}

export const NO_LINES: Lines = { chunks: [], count: 0, characters: 0 };

/** So much is kept: lines, and characters of them. */
export interface Most {
  lines: number;
  characters: number;
}

let lastId = 0;
const newId = () => (lastId += 1);

function chunkOf(id: number, gap: Gap | null, lines: readonly Line[]): Chunk {
  return { id, gap, lines, characters: lines.reduce((sum, { text }) => sum + text.length, 0) };
}

/** Lines in chunks, of which the first has this id, and this is missing before it. */
function cut(lines: Line[], gap: Gap | null, id = newId()): Chunk[] {
  const chunks = [chunkOf(id, gap, lines.slice(0, CHUNK))];
  for (let at = CHUNK; at < lines.length; at += CHUNK) chunks.push(chunkOf(newId(), null, lines.slice(at, at + CHUNK)));
  return chunks;
}

/** With other chunks in the place of some. */
function replaced(lines: Lines, from: number, to: number, by: Chunk[]): Lines {
  const { chunks } = lines;
  let { count, characters } = lines;
  for (const chunk of chunks.slice(from, to)) {
    count -= chunk.lines.length;
    characters -= chunk.characters;
  }
  for (const chunk of by) {
    count += chunk.lines.length;
    characters += chunk.characters;
  }
  return { chunks: [...chunks.slice(0, from), ...by, ...chunks.slice(to)], count, characters };
}

/** With newer events, oldest first, behind the others. With a gap nothing goes on over it. */
export function behind(lines: Lines, events: LogEvent[], gap: Gap | null = null): Lines {
  const at = lines.chunks.length - 1;
  const last = gap === null ? toGoOn(lines.chunks[at]) : undefined;
  const tail = last ? copyToGoOn(last.lines) : [];
  append(tail, events);
  return last ? replaced(lines, at, at + 1, cut(tail, last.gap, last.id)) : replaced(lines, at + 1, at + 1, cut(tail, gap));
}

/** A chunk that has room, or whose last line was not ended. */
function toGoOn(chunk: Chunk | undefined): Chunk | undefined {
  return chunk && (chunk.lines.length < CHUNK || chunk.lines.at(-1)?.isOpen) ? chunk : undefined;
}

/** The same lines, of which the last one may be written on. */
function copyToGoOn(lines: readonly Line[]): Line[] {
  const copy = lines.slice();
  const last = copy.at(-1);
  if (last) copy[copy.length - 1] = { ...last };
  return copy;
}

/** With older events, oldest first, before the chunk at this place, and what is missing before them. */
export function before(lines: Lines, at: number, events: LogEvent[], gap: Gap | null): Lines {
  const next = lines.chunks[at];
  if (!next) return behind(lines, events, gap);
  // Where nothing is missing any more, the chunk before goes on.
  const previous = gap === null ? lines.chunks[at - 1] : undefined;
  const older = previous ? copyToGoOn(previous.lines) : [];
  append(older, events);
  const seam = joined(older.at(-1), next.lines[0]);
  if (seam) older.pop();
  const rest = seam ? [seam, ...next.lines.slice(1)] : next.lines;
  const missing = previous ? previous.gap : gap;
  const own = older.length > 0 ? cut(older, missing, previous?.id) : [];
  return replaced(lines, previous ? at - 1 : at, at + 1, [...own, chunkOf(next.id, own.length > 0 ? null : missing, rest)]);
}

/** Without the oldest, where there are too many. */
export function newest(lines: Lines, most: Most): Lines {
  let { count, characters } = lines;
  let at = 0;
  for (const chunk of lines.chunks) {
    if ((count <= most.lines && characters <= most.characters) || at === lines.chunks.length - 1) break;
    count -= chunk.lines.length;
    characters -= chunk.characters;
    at += 1;
  }
  const first = lines.chunks[at];
  if (at === 0 || !first) return lines;
  // What is missing before them is not wanted any more.
  return { chunks: [{ ...first, gap: null }, ...lines.chunks.slice(at + 1)], count, characters };
}
