import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Refresher } from "../src/api/refresher";

let client: QueryClient;
let refresher: Refresher;
beforeEach(() => {
  vi.useFakeTimers();
  client = new QueryClient({ defaultOptions: { queries: { retry: false, networkMode: "always", staleTime: Infinity } } });
  refresher = new Refresher(client);
});
afterEach(() => {
  client.clear();
  vi.useRealTimers();
});
const pass = (ms: number) => vi.advanceTimersByTimeAsync(ms);

/** Something that is shown, which takes so long to be read; a number that grows in the store. */
function shown(name: string, { takesMs = 10, meta = {} }: { takesMs?: number; meta?: Record<string, unknown> } = {}) {
  const seen = { store: 1, reads: 0, atOnce: 0, most: 0, cancelled: 0, fails: false, takesMs };
  const observer = new QueryObserver<number>(client, {
    queryKey: [name],
    meta,
    queryFn: async ({ signal }) => {
      const { store } = seen;
      seen.reads += 1;
      seen.most = Math.max(seen.most, (seen.atOnce += 1));
      signal.addEventListener("abort", () => (seen.cancelled += 1));
      await new Promise((resolve) => setTimeout(resolve, seen.takesMs));
      seen.atOnce -= 1;
      if (seen.fails) throw new Error("away");
      return store;
    },
  });
  const stop = observer.subscribe(() => undefined);
  const change = () => {
    seen.store += 1;
    refresher.refresh(({ queryKey }) => queryKey[0] === name);
  };
  return { seen, stop, change, value: () => observer.getCurrentResult().data };
}

test("what has changed is read at once", async () => {
  const { seen, change, value } = shown("a");
  const other = shown("b");
  await pass(1000);
  change();
  await pass(20);
  expect([seen.reads, value(), other.seen.reads]).toEqual([2, 2, 1]);
});

test("of many changes few readings are made, and the last one is seen", async () => {
  const { seen, change, value } = shown("a");
  await pass(1000);
  for (let times = 0; times < 100; times += 1) {
    change();
    await pass(10);
  }
  await pass(200);
  // In a second, with pauses of 150 ms, and one after it.
  expect(seen.reads - 1).toBeGreaterThanOrEqual(7);
  expect(seen.reads - 1).toBeLessThanOrEqual(9);
  expect([value(), seen.most, seen.cancelled]).toEqual([101, 1, 0]);
  await pass(60_000);
  expect(seen.reads - 1).toBeLessThanOrEqual(9);
});

test("a change that comes while the same is read is read after that, and nothing is read twice at a time", async () => {
  const { seen, change, value } = shown("a", { takesMs: 500 });
  await pass(100);
  change();
  await pass(1000);
  expect([seen.reads, value(), seen.most, seen.cancelled]).toEqual([2, 2, 1, 0]);
  // The answer that is under way is older than this change.
  await pass(5000);
  change();
  await pass(100);
  change();
  await pass(5000);
  expect([seen.reads, value(), seen.most, seen.cancelled]).toEqual([4, 4, 1, 0]);
});

test("a server that is slow is asked less often", async () => {
  const { seen, change, value } = shown("a", { takesMs: 1000 });
  await pass(5000);
  for (let times = 0; times < 100; times += 1) {
    change();
    await pass(100);
  }
  // In ten seconds, half of them.
  expect(seen.reads - 1).toBeLessThanOrEqual(6);
  await pass(5000);
  expect(value()).toBe(101);
});

test("what asks for longer pauses gets them", async () => {
  const { seen, change } = shown("a", { meta: { gapMs: 3000 } });
  await pass(5000);
  change();
  await pass(20);
  change();
  await pass(2000);
  expect(seen.reads).toBe(2);
  await pass(1000);
  expect(seen.reads).toBe(3);
});

test("what is not shown is read when it is shown again", async () => {
  const { seen, stop, change } = shown("a");
  await pass(100);
  stop();
  change();
  await pass(1000);
  expect(seen.reads).toBe(1);
  const stopAgain = new QueryObserver(client, { queryKey: ["a"], queryFn: () => 99 }).subscribe(() => undefined);
  await pass(100);
  expect(client.getQueryData(["a"])).toBe(99);
  stopAgain();
});

test("what fails is read again by the next change", async () => {
  const { seen, change, value } = shown("a");
  await pass(1000);
  seen.fails = true;
  change();
  await pass(1000);
  expect([seen.reads, value(), client.getQueryState(["a"])?.status]).toEqual([2, 1, "error"]);
  seen.fails = false;
  change();
  await pass(20);
  expect([seen.reads, value(), client.getQueryState(["a"])?.status]).toEqual([3, 3, "success"]);
});

test("what was left while it waited for its turn is not read", async () => {
  const { seen, stop, change } = shown("a");
  await pass(1000);
  change();
  await pass(20);
  change();
  stop();
  await pass(1000);
  expect([seen.reads, client.getQueryState(["a"])?.isInvalidated]).toEqual([2, true]);
  // Nothing goes on.
  expect(vi.getTimerCount()).toBeLessThanOrEqual(1);
});
