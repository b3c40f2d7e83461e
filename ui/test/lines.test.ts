import { expect, test } from "vitest";
import type { LogEvent } from "../src/api/types";
import { append, decoded, type Line, matches, prepend, unknown } from "../src/logic/lines";

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

test("older output comes before, joined at the seam", () => {
  const lines: Line[] = [];
  append(lines, [event("ond\nthird\n")]);
  expect(texts(prepend(lines, [event("first\nsec")]))).toEqual(["first", "second", "third"]);
});

test("what is said again is not shown again, and twice the same is", () => {
  const [a, b] = [event("a\n"), event("b\n")];
  expect(unknown([a, b, b], [a, b])).toEqual([b]);
  expect(unknown([a, a], [])).toEqual([a, a]);
});

test("search does not mind the case", () => {
  expect(matches(["Error: x", "ok", "an ERROR"], "error")).toEqual([0, 2]);
  expect(matches(["a"], "")).toEqual([]);
});
