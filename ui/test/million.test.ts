import { beforeAll, expect, test } from "vitest";
import type { LogEvent } from "../src/api/types";
import { behind, before, type Chunk, CHUNK, type Lines, NO_LINES } from "../src/logic/chunks";
import { around, down, MOST_SHOWN, partBefore, up } from "../src/logic/part";
import { type Place, Search } from "../src/logic/search";

const MANY = 1_000_000;
const PAGE = 1000;
/** Events as pages have them, of this many lines in all; the numbers of lines begin here. */
function page(from: number, lines: number, perEvent = 20): LogEvent[] {
  return Array.from({ length: lines / perEvent }, (_, at) => {
    const text = Array.from({ length: perEvent }, (__, line) => `step ${from + at * perEvent + line}\n`).join("");
    return { timestamp: "2026-03-01T12:00:00Z", log_source: "stdout", message: btoa(text) };
  });
}
/** Chunks that are not those of before. */
function made(before: Lines, after: Lines): number {
  const known = new Set(before.chunks);
  return after.chunks.filter((chunk) => !known.has(chunk)).length;
}
const lineAt = (lines: Lines, { chunk, line }: Place) => lines.chunks.find(({ id }) => id === chunk)?.lines[line]?.text;

let million: Lines;
let most = 0;
/** As it is read when one scrolls up from the end: page before page. */
beforeAll(() => {
  let lines = NO_LINES;
  for (let from = MANY - PAGE; from >= 0; from -= PAGE) {
    const after = before(lines, 0, page(from, PAGE), null);
    if (from % (100 * PAGE) === 0) most = Math.max(most, made(lines, after));
    lines = after;
  }
  million = lines;
}, 60_000);

test("a million lines are kept, and each page touches as many chunks as it has", () => {
  expect(million.count).toBe(MANY);
  expect(million.chunks).toHaveLength(MANY / CHUNK);
  // Those of the page, and the one that it stands before.
  expect(most).toBeGreaterThanOrEqual(PAGE / CHUNK);
  expect(most).toBeLessThanOrEqual(PAGE / CHUNK + 1);
  expect(million.characters).toBe(million.chunks.reduce((sum, chunk) => sum + chunk.lines.reduce((own, { text }) => own + text.length, 0), 0));
  expect([million.chunks[0]?.lines[0]?.text, million.chunks.at(-1)?.lines.at(-1)?.text]).toEqual(["step 0", `step ${MANY - 1}`]);
});

test("a line that comes touches one chunk, and chunks keep their ids", () => {
  let lines = million;
  for (let at = 0; at < CHUNK + 10; at += 1) {
    const after = behind(lines, page(MANY + at, 1, 1));
    expect(made(lines, after)).toBeLessThanOrEqual(2);
    lines = after;
  }
  expect([lines.count, lines.chunks.length, million.count]).toEqual([MANY + CHUNK + 10, MANY / CHUNK + 2, MANY]);
  expect(new Set(lines.chunks.map(({ id }) => id)).size).toBe(lines.chunks.length);
  const [own, other] = [lines.chunks.at(-1), behind(lines, page(0, 1, 1)).chunks.at(-1)];
  expect([own?.id, own === other]).toEqual([other?.id, false]);
});

test("all of it is searched, each chunk once, as far as is allowed at a time, and the newest first", () => {
  const search = new Search("STEP 99999");
  const slices: number[] = [];
  const places: (string | undefined)[] = [];
  for (let isThrough = false; !isThrough; ) {
    let chunks = 0;
    isThrough = search.goOn(million.chunks, () => chunks < 100 && (chunks += 1) > 0);
    slices.push(chunks);
    const newest = search.newest(million.chunks);
    if (newest) places.push(lineAt(million, newest));
  }
  expect(slices.reduce((sum, chunks) => sum + chunks, 0)).toBe(MANY / CHUNK);
  expect(Math.max(...slices)).toBe(100);
  expect(search.isThrough(million.chunks)).toBe(true);
  expect(new Set(places)).toEqual(new Set(["step 999999"]));
  // 99999, and 999990 to 999999.
  expect(search.tally(million.chunks, null)).toEqual({ total: 11, position: null });

  // What comes is searched, and nothing again.
  let looked = 0;
  const count = () => (looked += 1) > 0;
  const more = behind(million, page(0, 1, 1));
  expect([search.goOn(more.chunks, count), looked]).toEqual([true, 1]);
  expect([search.goOn(more.chunks, count), looked]).toEqual([true, 1]);
  const older = before(more, 0, page(99_999, PAGE), null);
  expect([search.goOn(older.chunks, count), looked]).toEqual([true, 1 + PAGE / CHUNK]);
  expect(search.tally(older.chunks, null).total).toBe(12);
});

test("one goes from hit to hit, and round", () => {
  const search = new Search("step 99999");
  while (!search.goOn(million.chunks, () => true));
  const { chunks } = million;
  let place = search.newest(chunks);
  const way: (string | undefined)[] = [];
  for (let times = 0; times < 12 && place; times += 1) {
    way.push(`${lineAt(million, place)} ${search.tally(chunks, place).position}`);
    place = search.beside(chunks, place, true);
  }
  expect(way.slice(0, 3)).toEqual(["step 999999 11", "step 999998 10", "step 999997 9"]);
  expect(way.slice(-3)).toEqual(["step 999990 2", "step 99999 1", "step 999999 11"]);
  const oldest = search.beside(chunks, search.newest(chunks), false);
  expect(oldest && lineAt(million, oldest)).toBe("step 99999");
  const next = search.beside(chunks, oldest, false);
  expect(next && lineAt(million, next)).toBe("step 999990");
  expect(new Search("nowhere").beside(chunks, null, true)).toBeNull();
  // A place that is gone is none.
  expect(search.tally(chunks.slice(-10), oldest)).toEqual({ total: 10, position: null });
});

test("colours are not searched, and the case does not matter", () => {
  const text = "\x1b[31mRed\x1b[0m apple\n";
  const { chunks } = behind(NO_LINES, [{ timestamp: "2026-03-01T12:00:00Z", log_source: "stdout", message: btoa(text) }]);
  const found = (wanted: string) => {
    const search = new Search(wanted);
    search.goOn(chunks, () => true);
    return search.tally(chunks, null).total;
  };
  expect(["red APPLE", "31", "pear"].map(found)).toEqual([1, 0, 0]);
});

test("of very long output a part is laid out, which moves", () => {
  const count = 10 * MOST_SHOWN;
  const last = partBefore(count, null);
  expect(last).toEqual({ from: count - MOST_SHOWN, to: count });
  const higher = partBefore(count, up(last));
  expect(higher).toEqual({ from: last.from - MOST_SHOWN / 2, to: last.to - MOST_SHOWN / 2 });
  expect(down(higher, count)).toBeNull();
  expect(partBefore(count, down(partBefore(count, MOST_SHOWN), count))).toEqual({ from: MOST_SHOWN / 2, to: 1.5 * MOST_SHOWN });
  expect(partBefore(count, up({ from: 10, to: MOST_SHOWN + 10 }))).toEqual({ from: 0, to: MOST_SHOWN });
  // Of less than that all is.
  expect(partBefore(7, null)).toEqual({ from: 0, to: 7 });
  expect(partBefore(7, 3)).toEqual({ from: 0, to: 7 });
  // A chunk that is gone to is in it, wherever it is.
  for (const at of [0, 1, MOST_SHOWN, 5 * MOST_SHOWN + 17, count - 1]) {
    const part = partBefore(count, around(last, at, count));
    expect(at >= part.from && at < part.to, String(at)).toBe(true);
  }
  expect(around(higher, higher.from, count)).toBe(higher.to);
  expect(around(last, last.from, count)).toBeNull();
});

test("chunks of one output are those of no other", () => {
  const all: Chunk[] = [NO_LINES, NO_LINES].flatMap((lines) => behind(lines, page(0, 100)).chunks);
  expect(new Set(all.map(({ id }) => id)).size).toBe(4);
});
