import { expect, test } from "vitest";
import { parse, plain } from "../src/logic/ansi";

const E = "\x1b";
const looks = (line: string) => parse(line).map(({ text, look }) => [text, look.colour, look.bold]);

test("colours begin and end where the program says", () => {
  expect(looks(`a${E}[1;31mred${E}[0m b${E}[92mbright${E}[39m`)).toEqual([
    ["a", null, false],
    ["red", 1, true],
    [" b", null, false],
    ["bright", 10, false],
  ]);
});

test("colours of 256 and of all", () => {
  expect(looks(`${E}[38;5;9mx${E}[38;5;16my${E}[38;5;231mz${E}[38;5;244mg${E}[38;2;1;2;255mt${E}[38:5:1mq`).map(([, colour]) => colour)).toEqual([
    9,
    "#000000",
    "#ffffff",
    "#808080",
    "#0102ff",
    1,
  ]);
  const [piece] = parse(`${E}[48;5;300;1mx`);
  expect(piece?.look.background).toBe("#eeeeee");
  expect(piece?.look.bold).toBe(true);
});

test("what moves the cursor, titles, links and what was cut off is dropped", () => {
  const line = `${E}[2K${E}[1Ga${E}]0;title\x07b${E}]8;;javascript:alert(1)${E}\\c${E}]8;;${E}\\d${E}(Be\x00\x08${E}[31`;
  expect(plain(line)).toBe("abcde");
  expect(parse(line).map((piece) => piece.text).join("")).toBe("abcde");
});

test("text that would be read backwards is not", () => {
  expect(plain("a\u202eb\u2066c")).toBe("abc");
});

test("markup stays text", () => {
  const line = `<img src=x onerror=alert(1)>${E}[31m<script>alert(1)</script>`;
  expect(parse(line).map((piece) => piece.text)).toEqual(["<img src=x onerror=alert(1)>", "<script>alert(1)</script>"]);
});

test("a hostile line is read in time that grows with its length", () => {
  const from = performance.now();
  parse(`${E}[`.repeat(50_000) + `${E}]`.repeat(50_000) + `${E}[${";".repeat(100_000)}`);
  expect(performance.now() - from).toBeLessThan(2000);
});
