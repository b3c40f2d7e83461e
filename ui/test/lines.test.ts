import { expect, test } from "vitest";
import type { LogEvent } from "../src/api/types";
import { plain } from "../src/logic/ansi";
import { pathAt } from "../src/logic/completion";
import { append, decoded, joined, type Line, LONGEST, matches, split, tellsOfLoss, unknown } from "../src/logic/lines";

let second = 0;
const event = (text: string, log_source: LogEvent["log_source"] = "stdout"): LogEvent => ({
  timestamp: `2026-03-01T12:00:${String(second++ % 60).padStart(2, "0")}Z`,
  log_source,
  message: Buffer.from(text).toString("base64"),
});
const texts = (lines: Line[]) => lines.map((line) => line.text);

test("output is text of any script", () => {
  expect(decoded(event("héllo 世界 🐧").message)).toBe("héllo 世界 🐧");
});

test("a line may come in pieces, and pieces may have many lines", () => {
  const lines: Line[] = [];
  append(lines, [event("a\nb"), event("c\n\nd")]);
  expect(texts(lines)).toEqual(["a", "bc", "", "d"]);
  expect(lines.at(-1)?.isOpen).toBe(true);
  append(lines, [event("!\n")]);
  expect(texts(lines)).toEqual(["a", "bc", "", "d!"]);
});

test("errors do not end up in the middle of other lines", () => {
  const lines: Line[] = [];
  append(lines, [event("out"), event("err\n", "stderr"), event("more\n")]);
  expect(lines.map((line) => [line.text, line.isError])).toEqual([
    ["out", false],
    ["err", true],
    ["more", false],
  ]);
});

test("progress bars show what they show last", () => {
  const lines: Line[] = [];
  append(lines, [event("10%\r50%\r"), event("100%\r\nnext\r\n")]);
  expect(texts(lines)).toEqual(["100%\r", "next\r"]);
});

test("a line of two pieces is one, where the first was not ended and both are of one kind", () => {
  const pieces = (first: string, second: string, ...sources: LogEvent["log_source"][]) => {
    const [one, two]: [Line[], Line[]] = [[], []];
    append(one, [event(first, sources[0])]);
    append(two, [event(second, sources[1])]);
    return joined(one.at(-1), two[0])?.text ?? null;
  };
  expect(pieces("first\nsec", "ond\nthird\n")).toBe("second");
  expect(pieces("first\n", "second\n")).toBeNull();
  expect(pieces("out", "err", "stdout", "stderr")).toBeNull();
  expect([joined(undefined, undefined), pieces("10%\r", "100%\n")]).toEqual([null, "100%"]);
});

test("what is said again is not shown again, and twice the same is", () => {
  const [a, b] = [event("a\n"), event("b\n")];
  expect(unknown([a, b, b], [a, b])).toEqual([b]);
  expect(unknown([a, a], [])).toEqual([a, a]);
});

test("lines that tell of lost output are known", () => {
  // As crates/dstack-agent-api/src/stream.rs and crates/dstack-server/src/wiring/output/quota.rs write them.
  expect(tellsOfLoss("[4096 bytes of log were lost: the spool was full]")).toBe(true);
  expect(tellsOfLoss("[output is left out here: the job has used up its quota of 1000 bytes an hour]")).toBe(true);
  for (const text of ["[info] 3 bytes of log were lost: the spool was full]", "bytes of log were lost", "[]", ""]) expect(tellsOfLoss(text), text).toBe(false);
});

test("search does not mind the case", () => {
  expect(matches(["Error: x", "ok", "an ERROR"], "error")).toEqual([0, 2]);
  expect(matches(["a"], "")).toEqual([]);
});

test("a line that never ends is kept as far as screens show it, until it is written over", () => {
  const lines: Line[] = [];
  append(lines, Array.from({ length: 10 }, () => event("x".repeat(LONGEST / 4))));
  expect(lines.map(({ text, isCut }) => [text.length, isCut])).toEqual([[LONGEST, true]]);
  append(lines, [event("\rshort")]);
  expect(lines.map(({ text, isCut }) => [text, isCut])).toEqual([["short", false]]);
});

test("what is found stands between what is not", () => {
  expect(split("An error: ERROR", "error")).toEqual(["An ", "error", ": ", "ERROR", ""]);
  expect(split("nothing", "x")).toEqual(["nothing"]);
  expect(split("nothing", "")).toEqual(["nothing"]);
  expect(split("İi", "i")).toEqual(["İi"]);
});

/** Much longer than it takes in time that grows as the text does, and much shorter than in time that grows as its square. */
const SOON_MS = 1000;
function took(work: () => unknown): number {
  const start = performance.now();
  work();
  return performance.now() - start;
}

test("text that was made to take long does not", () => {
  const many = 200_000;
  expect(took(() => append([], [event(`${"\r".repeat(many)}x`)]))).toBeLessThan(SOON_MS);
  expect(took(() => split("X".repeat(5 * many), "x"))).toBeLessThan(SOON_MS);
  expect(took(() => pathAt(["a:", " ".repeat(many), "  "], 2, 2))).toBeLessThan(SOON_MS);
  for (const text of ["\x1b[".repeat(many), `\x1b[${"0".repeat(many)}`, `\x1b[${"0;".repeat(many)}!`, "\x1b]".repeat(many)]) {
    expect(took(() => plain(text))).toBeLessThan(SOON_MS);
  }
});
