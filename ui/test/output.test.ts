import { expect, test } from "vitest";
import type { LogEvent } from "../src/api/types";
import { CHUNK } from "../src/logic/chunks";
import { type Asked, begun, type Kept, lastGap, newer, NOTHING, type Page, withMissing, withNewer } from "../src/logic/output";

/** Output of which each character is an event, in the second that it stands at. */
const event = (char: string, second: number): LogEvent => ({ timestamp: new Date(Date.UTC(2026, 2, 1) + second * 1000).toISOString(), log_source: "stdout", message: btoa(`${char}\n`) });
const events = (text: string, from = 0) => [...text].map((char, at) => event(char, from + at));
const newEvents = async (...asked: Parameters<typeof newer>) => text((await newer(...asked)).events);
const text = (found: LogEvent[]) => found.map(({ message }) => atob(message).trim()).join("");

/** A store of events, oldest first, that answers as the server does, newest first, and notes what it is asked. */
function store(all: LogEvent[], limit: number) {
  const asked: Asked[] = [];
  const read = { events: 0 };
  const ask = async (question: Asked): Promise<Page> => {
    asked.push(question);
    const since = question.start_time === undefined ? -Infinity : Date.parse(question.start_time);
    const end = question.next_token === undefined ? all.length : Number(question.next_token);
    const found = all.slice(0, end).filter((each) => Date.parse(each.timestamp) > since);
    const logs = found.slice(-limit).toReversed();
    read.events += logs.length;
    return { logs, next_token: found.length > limit ? String(end - limit) : null };
  };
  return { ask, asked, read };
}

test("new output is asked for from the end, since what is known", async () => {
  const { ask, asked, read } = store([...events("x".repeat(500)), ...events("abcde", 500)], 10);
  expect(await newEvents(ask, events("abc", 500))).toBe("de");
  expect(asked).toEqual([{ descending: true, start_time: new Date(Date.parse(events("c", 502)[0]?.timestamp ?? "") - 1).toISOString() }]);
  expect(read.events).toBe(3);
});

test("what was printed in the same moment as the last that is known is not lost, and not said twice", async () => {
  const known = [event("a", 1), event("b", 2)];
  const { ask } = store([...known, event("c", 2), event("d", 3)], 10);
  expect(await newEvents(ask, known)).toBe("cd");
  expect(await newer(store(known, 10).ask, known)).toEqual({ events: [], gap: null });
});

test("new output of several pages is read until it joins what is known", async () => {
  const all = events("abcdefghijkl");
  const { ask, asked } = store(all, 4);
  expect(await newer(ask, all.slice(0, 3))).toEqual({ events: all.slice(3), gap: null });
  expect(asked.map(({ next_token }) => next_token)).toEqual([undefined, "8", "4"]);
});

test("of more new output than is read at once the newest is, and how to read the rest is known", async () => {
  const all = events("a".repeat(100));
  const { ask, asked } = store(all, 2);
  const { events: found, gap } = await newer(ask, all.slice(0, 3));
  expect([found, asked.length]).toEqual([all.slice(90), 5]);
  expect(gap).toEqual({ asked: { ...asked[0], next_token: "90" }, seam: [all[2]] });
});

test("the first output of a job is found, whatever there is of it", async () => {
  expect(await newEvents(store(events("ab"), 10).ask, [])).toBe("ab");
  expect(await newer(store([], 10).ask, [])).toEqual({ events: [], gap: null });
});

const page = (text: string, next_token: string | null = null): Page => ({ logs: events(text).toReversed(), next_token });
const fresh = (text: string) => ({ events: events(text), gap: null });
const shown = ({ lines }: Kept) => lines.chunks.flatMap((chunk) => chunk.lines.map((line) => line.text)).join("");
/** By what the oldest output that is not read is asked for. */
const olderOf = ({ lines }: Kept) => lines.chunks[0]?.gap?.asked.next_token ?? null;
const withOlder = (kept: Kept, older: Page, most?: Parameters<typeof withMissing>[3]) => withMissing(kept, kept.lines.chunks[0]?.id ?? 0, older, most);

test("of output without end about so many of the newest lines are kept, and those that are older are not read", () => {
  const most = { lines: 4 * CHUNK, characters: 1e6 };
  let kept = begun(page("a".repeat(CHUNK), "older"));
  for (let times = 0; times < 3; times += 1) kept = withNewer(kept, fresh("b".repeat(CHUNK)), most);
  expect([kept.lines.count, olderOf(kept), kept.isCut]).toEqual([4 * CHUNK, "older", false]);
  kept = withNewer(kept, fresh("c"), most);
  expect([shown(kept), kept.lines.count, olderOf(kept), kept.isCut]).toEqual(["b".repeat(3 * CHUNK) + "c", 3 * CHUNK + 1, null, true]);
});

test("of long lines fewer are kept, but the last ones always", () => {
  const kept = withNewer(begun(page("a".repeat(3 * CHUNK))), fresh("b"), { lines: 1e6, characters: CHUNK + 1 });
  expect([shown(kept), kept.lines.characters, kept.isCut]).toEqual(["a".repeat(CHUNK) + "b", CHUNK + 1, true]);
  expect(shown(withNewer(kept, fresh("c"), { lines: 0, characters: 0 }))).toBe("bc");
});

test("older output is read until its beginning, or until there is no more room for it", () => {
  const most = { lines: 2 * CHUNK, characters: 1e6 };
  const more = withOlder(begun(page("d", "2")), page("bc", "1"), most);
  expect([shown(more), olderOf(more), more.isCut]).toEqual(["bcd", "1", false]);
  const whole = withOlder(more, page("a"), most);
  expect([shown(whole), olderOf(whole), whole.isCut, lastGap(whole)]).toEqual(["abcd", null, false, undefined]);
  const full = withOlder(more, page("x".repeat(2 * CHUNK), "0"), most);
  expect([shown(full), olderOf(full), full.isCut]).toEqual(["x".repeat(CHUNK) + "bcd", null, true]);
});

test("a store that goes in circles is at its end", () => {
  const kept = withOlder(begun(page("b", "same")), page("", "same"));
  expect([shown(kept), lastGap(kept)]).toEqual(["b", undefined]);
  // Pages without anything may stand before others.
  const on = withOlder(begun(page("", "3")), page("", "2"));
  expect([shown(on), olderOf(on)]).toEqual(["", "2"]);
  expect(shown(withOlder(on, page("a")))).toBe("a");
});

test("what came between is marked as missing, and is read from its end until it joins", async () => {
  const all = events("abcdefghijklmnopqrstuvwxyz");
  const { ask } = store(all, 2);
  let kept = withNewer(NOTHING, { events: all.slice(0, 3), gap: null });
  kept = withNewer(kept, await newer(ask, all.slice(0, 3)));
  expect(shown(kept)).toBe("abcqrstuvwxyz");
  const states: string[] = [];
  for (let gap = lastGap(kept); gap; gap = lastGap(kept)) {
    kept = withMissing(kept, gap.id, await ask(gap.gap?.asked ?? { descending: true }));
    states.push(shown(kept));
  }
  expect(states[0]).toBe("abcopqrstuvwxyz");
  expect([states.at(-1), states.length, kept.lines.chunks.some((chunk) => chunk.gap)]).toEqual(["abcdefghijklmnopqrstuvwxyz", 7, false]);
});

test("what is missing before the oldest lines that are kept is not read any more", () => {
  const gap = { asked: { descending: true as const, next_token: "1" }, seam: [] };
  const kept = withNewer(begun(page("a".repeat(CHUNK))), { events: events("b".repeat(CHUNK)), gap });
  expect([lastGap(kept)?.gap, kept.isCut]).toEqual([gap, false]);
  const cut = withNewer(kept, fresh("c"), { lines: CHUNK + 1, characters: 1e6 });
  expect([shown(cut), lastGap(cut), cut.isCut]).toEqual(["b".repeat(CHUNK) + "c", undefined, true]);
});

test("a line that goes on over what was missing is one", () => {
  const piece = (text: string, second: number) => ({ ...event("", second), message: btoa(text) });
  const gap = { asked: { descending: true as const, next_token: "1" }, seam: [piece("one, ", 1)] };
  const kept = withNewer(withNewer(NOTHING, { events: gap.seam, gap: null }), { events: [piece("three\nfour", 3)], gap });
  const whole = withMissing(kept, lastGap(kept)?.id ?? 0, { logs: [piece("two, ", 2), piece("one, ", 1)], next_token: "0" });
  expect(whole.lines.chunks.flatMap((chunk) => chunk.lines.map(({ text }) => text))).toEqual(["one, two, three", "four"]);
  const between = withMissing(kept, lastGap(kept)?.id ?? 0, { logs: [piece("x\ntwo, ", 2), piece("one, ", 1)], next_token: "0" });
  expect(between.lines.chunks.flatMap((chunk) => chunk.lines.map(({ text }) => text))).toEqual(["one, x", "two, three", "four"]);
});

test("what is read of a gap that was left out meanwhile is left out", () => {
  const kept = begun(page("b", "1"));
  expect(withMissing(kept, 999_999_999, page("a"))).toBe(kept);
});

test("lines that are shown are not changed behind the back of who shows them", () => {
  const open = { logs: [{ ...event("a", 0), message: btoa("half") }], next_token: null };
  const before = begun(open);
  const after = withNewer(before, { events: [{ ...event("b", 1), message: btoa(" and whole\n") }], gap: null });
  expect([shown(before), shown(after)]).toEqual(["half", "half and whole"]);
});
