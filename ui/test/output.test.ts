import { expect, test } from "vitest";
import type { LogEvent } from "../src/api/types";
import { type Asked, begun, newer, type Page, withNewer, withOlder } from "../src/logic/output";

/** Output of which each character is an event, in the second that it stands at. */
const event = (char: string, second: number): LogEvent => ({ timestamp: new Date(Date.UTC(2026, 2, 1) + second * 1000).toISOString(), log_source: "stdout", message: btoa(`${char}\n`) });
const events = (text: string, from = 0) => [...text].map((char, at) => event(char, from + at));
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
  expect(text((await newer(ask, events("abc", 500))) ?? [])).toBe("de");
  expect(asked).toEqual([{ descending: true, start_time: new Date(Date.parse(events("c", 502)[0]?.timestamp ?? "") - 1).toISOString() }]);
  expect(read.events).toBe(3);
});

test("what was printed in the same moment as the last that is known is not lost, and not said twice", async () => {
  const known = [event("a", 1), event("b", 2)];
  const { ask } = store([...known, event("c", 2), event("d", 3)], 10);
  expect(text((await newer(ask, known)) ?? [])).toBe("cd");
  expect(await newer(store(known, 10).ask, known)).toEqual([]);
});

test("new output of several pages is read until it joins what is known", async () => {
  const all = events("abcdefghijkl");
  const { ask, asked } = store(all, 4);
  expect(text((await newer(ask, all.slice(0, 3))) ?? [])).toBe("defghijkl");
  expect(asked.map(({ next_token }) => next_token)).toEqual([undefined, "8", "4"]);
});

test("more new output than is read at once begins again at the end", async () => {
  const all = events("a".repeat(100));
  const { ask, asked } = store(all, 2);
  expect(await newer(ask, all.slice(0, 3))).toBeNull();
  expect(asked).toHaveLength(5);
});

test("the first output of a job is found, whatever there is of it", async () => {
  expect(text((await newer(store(events("ab"), 10).ask, [])) ?? [])).toBe("ab");
  expect(await newer(store([], 10).ask, [])).toEqual([]);
});

const page = (text: string, next_token: string | null = null): Page => ({ logs: events(text).toReversed(), next_token });
const shown = (lines: { text: string }[]) => lines.map((line) => line.text).join("");

test("of output without end the newest lines are kept", () => {
  const most = { lines: 4, characters: 1000 };
  const kept = withNewer(begun(page("abc", "older")), events("de"), most);
  expect([shown(kept.lines), kept.older, kept.isCut]).toEqual(["bcde", null, true]);
  const few = withNewer(begun(page("abc", "older")), events("d"), most);
  expect([shown(few.lines), few.older, few.isCut]).toEqual(["abcd", "older", false]);
});

test("of long lines fewer are kept", () => {
  const kept = withNewer(begun(page("abc", "older")), events("d"), { lines: 100, characters: 2 });
  expect([shown(kept.lines), kept.isCut]).toEqual(["cd", true]);
});

test("older output is read until there is no more room for it", () => {
  const most = { lines: 4, characters: 1000 };
  const more = withOlder(begun(page("d", "2")), page("bc", "1"), most);
  expect([shown(more.lines), more.older, more.isCut]).toEqual(["bcd", "1", false]);
  const full = withOlder(more, page("xa", "0"), most);
  expect([shown(full.lines), full.older, full.isCut]).toEqual(["abcd", null, true]);
  const whole = withOlder(more, page("a"), most);
  expect([shown(whole.lines), whole.older, whole.isCut]).toEqual(["abcd", null, false]);
});

test("lines that are shown are not changed behind the back of who shows them", () => {
  const open = { logs: [{ ...event("a", 0), message: btoa("half") }], next_token: null };
  const before = begun(open);
  const after = withNewer(before, [{ ...event("b", 1), message: btoa(" and whole\n") }]);
  expect([shown(before.lines), shown(after.lines)]).toEqual(["half", "half and whole"]);
});
