import { expect, test } from "vitest";
import { eachOf } from "../src/logic/turns";

/** Calls that end when they are told to. */
function calls() {
  const waiting: (() => void)[] = [];
  const begun: number[] = [];
  const call = async (item: number) => {
    begun.push(item);
    await new Promise<void>((resolve) => waiting.push(resolve));
    if (item < 0) throw new Error(`no ${item}`);
    return item * 10;
  };
  const end = async () => {
    waiting.shift()?.();
    for (let turns = 0; turns < 10; turns += 1) await Promise.resolve();
  };
  return { begun, call, end };
}

test("of many calls few are under way at the same time, and what they give is in order", async () => {
  const { begun, call, end } = calls();
  const found = eachOf([1, 2, 3, 4, 5], 2, call);
  expect(begun).toEqual([1, 2]);
  await end();
  expect(begun).toEqual([1, 2, 3]);
  for (let ends = 0; ends < 4; ends += 1) await end();
  expect(await found).toEqual([10, 20, 30, 40, 50]);
  expect(await eachOf([], 2, call)).toEqual([]);
});

test("after a failure no more are begun", async () => {
  const { begun, call, end } = calls();
  const failed = eachOf([-1, 2, 3, 4], 2, call).catch(String);
  await end();
  expect(await failed).toBe("Error: no -1");
  await end();
  expect(begun).toEqual([-1, 2]);
});
