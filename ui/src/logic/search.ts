/** Looks for a text in lines that come and go, bit by bit: what was looked through once is not looked through again. */

import { plain } from "./ansi";
import type { Chunk } from "./chunks";
import { type Line, matches } from "./lines";

/** A line: of which chunk, and which of its lines. */
export interface Place {
  chunk: number;
  line: number;
}

/** How much was found. */
export interface Tally {
  total: number;
  /** Which of them this place is, from 1 for the oldest; null where it is none of them (any more). */
  position: number | null;
}

const NONE: readonly number[] = [];

export class Search {
  readonly #wanted: string;
  /** Which lines of a chunk have it. */
  readonly #found = new WeakMap<readonly Line[], readonly number[]>();
  /** What was looked through last, and how far, from its end. */
  #chunks: readonly Chunk[] | null = null;
  #at = -1;

  constructor(wanted: string) {
    this.#wanted = wanted;
  }

  /** Goes on, from the newest on, for as long as it may; whether it is through. */
  goOn(chunks: readonly Chunk[], mayGoOn: () => boolean): boolean {
    if (this.#chunks !== chunks) this.#at = chunks.length - 1;
    this.#chunks = chunks;
    for (; this.#at >= 0; this.#at -= 1) {
      const lines = chunks[this.#at]?.lines;
      if (!lines || this.#found.has(lines)) continue;
      if (!mayGoOn()) return false;
      const found = matches(lines.map(({ text }) => plain(text)), this.#wanted);
      this.#found.set(lines, found.length > 0 ? found : NONE);
    }
    return true;
  }

  /** Whether it has looked through all of these. */
  isThrough(chunks: readonly Chunk[]): boolean {
    return this.#chunks === chunks && this.#at < 0;
  }

  #hits({ lines }: Chunk): readonly number[] {
    return this.#found.get(lines) ?? NONE;
  }

  tally(chunks: readonly Chunk[], place: Place | null): Tally {
    const tally: Tally = { total: 0, position: null };
    for (const chunk of chunks) {
      const hits = this.#hits(chunk);
      if (chunk.id === place?.chunk && hits.includes(place.line)) tally.position = tally.total + hits.indexOf(place.line) + 1;
      tally.total += hits.length;
    }
    return tally;
  }

  /** The newest that was found. */
  newest(chunks: readonly Chunk[]): Place | null {
    const chunk = chunks.findLast((each) => this.#hits(each).length > 0);
    return chunk ? { chunk: chunk.id, line: this.#hits(chunk).at(-1) ?? 0 } : null;
  }

  /** What was found next to a place: the older one, or the newer one. After the last comes the first. */
  beside(chunks: readonly Chunk[], place: Place | null, isOlder: boolean): Place | null {
    const all = isOlder ? chunks.toReversed() : chunks;
    const isBeyond = (line: number) => place !== null && (isOlder ? line < place.line : line > place.line);
    const start = all.findIndex((chunk) => chunk.id === place?.chunk);
    const own = all[start];
    const ordered = (chunk: Chunk) => (isOlder ? this.#hits(chunk).toReversed() : this.#hits(chunk));
    const inOwn = own && ordered(own).find(isBeyond);
    if (own && inOwn !== undefined) return { chunk: own.id, line: inOwn };
    for (const chunk of [...all.slice(start + 1), ...all.slice(0, start + 1)]) {
      const [line] = ordered(chunk);
      if (line !== undefined) return { chunk: chunk.id, line };
    }
    return null;
  }
}
