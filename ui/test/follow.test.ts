import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApiError, ServerLost, TryLater } from "../src/api/errors";
import { pauseAfter } from "../src/api/retry";
import { follow, type Trouble, tryingAgain } from "../src/logic/follow";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const refused = (status: number) => new ApiError(status, [{ text: "no", place: [] }], null);
const pause = (ms: number) => (ms > 0 ? new Promise((resolve) => setTimeout(resolve, ms)) : Promise.resolve());
const pass = (ms: number) => vi.advanceTimersByTimeAsync(ms);

/** Something that is followed, whose readings end as these say, and then well. */
function followed(...failures: unknown[]) {
  const seen = { reads: 0, isLive: true, isHidden: false, everyMs: 1500, takesMs: 0, told: [] as (Trouble | null)[] };
  const { stop, now } = follow({
    read: async () => {
      seen.reads += 1;
      await pause(seen.takesMs);
      const failure = failures.shift();
      if (failure !== undefined) throw failure;
    },
    isLive: () => seen.isLive,
    everyMs: () => seen.everyMs,
    pauseAfter: (count, error) => pauseAfter(count, error, 3000),
    isHidden: () => seen.isHidden,
    tell: (trouble) => seen.told.push(trouble),
  });
  return { seen, stop, now };
}

test("what is followed waits as long as the server asks, but not without bounds", async () => {
  const { seen, stop } = followed(new TryLater("busy", 429, 20_000), new TryLater("busy", 429, 60_000));
  await pass(19_900);
  expect(seen.reads).toBe(1);
  await pass(100);
  expect(seen.reads).toBe(2);
  await pass(59_900);
  expect(seen.reads).toBe(2);
  await pass(100);
  expect(seen.reads).toBe(3);
  await pass(1500);
  expect(seen.reads).toBe(4);
  stop();
});

test("that it is tried again is said, and why", async () => {
  const { seen, stop } = followed(new ServerLost("away"), new ServerLost("away"));
  await pass(0);
  expect(seen.told).toEqual([{ error: new ServerLost("away"), failures: 1, againMs: 3000 }]);
  await pass(3000);
  expect(seen.told.map((trouble) => trouble && tryingAgain(trouble))).toEqual(["It is tried again in 3 s.", "It is tried again in 3 s; it has failed 2 times."]);
  await pass(3000);
  expect(seen.told.at(-1)).toBeNull();
  stop();
});

test("what is refused is not asked for again and again", async () => {
  for (const status of [401, 403, 404]) {
    const { seen } = followed(refused(status));
    await pass(600_000);
    expect([seen.reads, seen.told[0]?.againMs, tryingAgain(seen.told[0] as Trouble)], String(status)).toEqual([1, null, null]);
  }
  const { seen, stop } = followed(refused(500));
  await pass(3000);
  expect(seen.reads).toBe(2);
  stop();
});

test("what is over is read once more, also where that fails at first", async () => {
  const { seen } = followed();
  await pass(1400);
  seen.isLive = false;
  await pass(600_000);
  expect(seen.reads).toBe(2);
  const ended = followed(new ServerLost("away"));
  ended.seen.isLive = false;
  await pass(600_000);
  expect(ended.seen.reads).toBe(2);
});

test("nothing is read while nobody looks, and what was missed is read then", async () => {
  const { seen } = followed();
  seen.isHidden = true;
  seen.isLive = true;
  await pass(60_000);
  seen.isLive = false;
  expect(seen.reads).toBe(1);
  seen.isHidden = false;
  await pass(1500);
  expect(seen.reads).toBe(2);
  expect(vi.getTimerCount()).toBe(0);
});

test("what is left is not read on", async () => {
  const { seen, stop } = followed(new ServerLost("away"));
  stop();
  await pass(600_000);
  expect([seen.reads, seen.told]).toEqual([1, []]);
});

test("what is new is read at once, and not again and again", async () => {
  const { seen, stop, now } = followed();
  seen.everyMs = 60_000;
  await pass(10_000);
  expect(seen.reads).toBe(1);
  now();
  await pass(0);
  expect(seen.reads).toBe(2);
  for (let times = 0; times < 100; times += 1) {
    now();
    await pass(10);
  }
  // A second, with pauses of 150 ms.
  expect(seen.reads).toBeGreaterThanOrEqual(8);
  expect(seen.reads).toBeLessThanOrEqual(9);
  stop();
});

test("what is new while it is read is read after that, and a store that is slow is asked less often", async () => {
  const { seen, stop, now } = followed();
  seen.everyMs = 60_000;
  await pass(1000);
  seen.takesMs = 200;
  now();
  await pass(100);
  now();
  now();
  await pass(150);
  expect(seen.reads).toBe(2);
  await pass(800);
  expect(seen.reads).toBe(3);
  await pass(30_000);
  expect(seen.reads).toBe(3);
  stop();
});

test("what fails is not asked for sooner because there is something new", async () => {
  const { seen, stop, now } = followed(new TryLater("busy", 429, 20_000));
  await pass(1000);
  now();
  await pass(18_000);
  expect(seen.reads).toBe(1);
  await pass(1000);
  expect(seen.reads).toBe(2);
  stop();
  now();
  await pass(60_000);
  expect(seen.reads).toBe(2);
});
