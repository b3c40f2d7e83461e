import { InfiniteQueryObserver, QueryClient } from "@tanstack/react-query";
import { expect, test, vi } from "vitest";
import { ApiError } from "../src/api/errors";
import type { Event, Metric } from "../src/api/types";
import { chatDelta, serverSentData } from "../src/logic/chat";
import { allPages, firstFurther, readsOn, withFurther, withHead } from "../src/logic/live";
import { charts } from "../src/logic/metrics";
import { phases } from "../src/logic/timeline";

const row = (id: string, status = "") => ({ id, status });
type Row = ReturnType<typeof row>;
/** Pages of rows that are named by letters, as `cb|a`, after a head came. */
function merged(known: string, head: string, limit: number, most = Infinity): { pages: string; starts: number } {
  const pages = known.split("|").map((page) => [...page].map((id) => row(id)));
  const pageParams: (Row | undefined)[] = pages.map((_, at) => pages[at - 1]?.at(-1));
  const after = withHead({ pages, pageParams }, [...head].map((id) => row(id, "*")), { limit, most, idOf: (each) => each.id });
  return { pages: after.pages.map((page) => page.map(({ id, status }) => id + status).join("")).join("|"), starts: after.pageParams.length };
}

test("a newer first page comes before the rest", () => {
  expect(merged("cba", "dc", 2).pages).toBe("d*c*ba");
  expect(merged("cba", "cb", 2).pages).toBe("c*b*a");
});

test("what a newer page must have had, and has not, is gone", () => {
  expect(merged("cba", "ca", 2).pages).toBe("c*a*");
  expect(merged("cba", "b", 2).pages).toBe("b*");
  expect(merged("a", "", 2).pages).toBe("");
});

test("where more came than a page has, the list begins again, and has no hole", () => {
  expect(merged("ba", "zy", 2)).toEqual({ pages: "z*y*", starts: 1 });
  expect(merged("dc|ba", "zy", 2)).toEqual({ pages: "z*y*", starts: 1 });
});

test("the last page keeps its length, by which it is known whether there is more", () => {
  expect(merged("dc|b", "ed", 2)).toEqual({ pages: "e*d*c|b", starts: 2 });
  expect(merged("ed|cb", "fe", 2)).toEqual({ pages: "f*e*d|cb", starts: 2 });
});

/** Pages of rows that are named by letters, after a page came that stands after one of them. */
function further(known: string, after: string, page: string, limit: number): { pages: string; starts: number } {
  const pages = known.split("|").map((rows) => [...rows].map((id) => row(id)));
  const pageParams: (Row | undefined)[] = pages.map((_, at) => pages[at - 1]?.at(-1));
  const newer = [...page].map((id) => row(id, "*"));
  const { pages: merged, pageParams: starts } = withFurther({ pages, pageParams }, row(after), newer, { limit, most: Infinity, idOf: (each) => each.id });
  return { pages: merged.map((rows) => rows.map(({ id, status }) => id + status).join("")).join("|"), starts: starts.length };
}

test("what has changed further down is put in its place", () => {
  expect(further("ih|gf|ed|c", "g", "fe", 2)).toEqual({ pages: "ihgf*e*d|c", starts: 2 });
  // One is gone.
  expect(further("ih|gf|ed|c", "g", "ed", 2).pages).toBe("ihge*d*|c");
  expect(further("ih|gf|ed|c", "d", "c", 2)).toEqual({ pages: "ihgfedc*", starts: 1 });
  expect(further("ih|gf|ed|c", "d", "", 2).pages).toBe("ihgfed");
  // The list has grown behind what is known.
  expect(further("ih|gf", "g", "fe", 2).pages).toBe("ihgf*e*");
  // Nothing is put where it is not known how it joins.
  for (const [after, page] of [["z", "yx"], ["h", "zy"]] as const) expect(further("ih|gf|ed|c", after, page, 2).pages).toBe("ih|gf|ed|c");
});

test("what has changed on the first page is not read apart from it", () => {
  const known = { pages: [[..."ihg"].map((id) => row(id)), [..."fed"].map((id) => row(id))], pageParams: [undefined, row("g")] };
  const first = (...ids: string[]) => {
    const found = firstFurther(known, new Set(ids), { limit: 2, most: Infinity, idOf: (each: Row) => each.id });
    return found && `${found.row.id} after ${found.after.id}`;
  };
  expect([first("i", "h"), first("h", "d", "e"), first("g"), first("z"), first()]).toEqual([null, "e after f", "g after h", null, null]);
});

test("a list that is open for days keeps its newest rows", () => {
  expect(merged("dc|ba", "ed", 2, 4)).toEqual({ pages: "e*d*cb", starts: 1 });
});

const event = (at: number, message: string, id = "job"): Event => ({
  id: `${at}${message}`,
  message,
  recorded_at: `2026-03-01T12:00:${String(at).padStart(2, "0")}.000000Z`,
  actor_user_id: null,
  actor_user: null,
  is_actor_user_deleted: null,
  targets: [{ type: "job", project_id: null, project_name: "p", is_project_deleted: false, id, name: "j" }],
});

test("the way of a job follows from its events, whatever their order", () => {
  const events = [
    event(9, "Job status changed TERMINATING -> FAILED"),
    event(8, "Job status changed RUNNING -> TERMINATING. Termination reason: CONTAINER_EXITED_WITH_ERROR"),
    event(1, "Job created on run submission. Status: SUBMITTED"),
    event(2, "Job status changed SUBMITTED -> PROVISIONING"),
    event(5, "Job status changed PROVISIONING -> RUNNING"),
    event(6, "Job status changed RUNNING -> DONE", "another"),
    event(7, "Something else"),
  ];
  const way = phases(events, "job");
  expect(way.map(({ status, reason }) => [status, reason])).toEqual([
    ["submitted", null],
    ["provisioning", null],
    ["running", "container exited with error"],
    ["terminating", null],
    ["failed", null],
  ]);
  expect(way[2]).toMatchObject({ from: events[4]?.recorded_at, to: events[1]?.recorded_at });
  expect(phases(events.slice(2, 5), "job").at(-1)?.to).toBeNull();
});

const metric = (name: string, values: unknown[]): Metric => ({ name, timestamps: values.map((_, at) => `2026-03-01T12:00:${20 - at}Z`), values: values as never });

test("charts are of what was measured, oldest first", () => {
  const made = charts([
    metric("cpu_usage_percent", [400, 100]),
    metric("cpus_detected_num", [4, 4]),
    metric("memory_working_set_bytes", [20, 10]),
    metric("memory_total_bytes", [100, 100]),
    metric("gpus_detected_num", [2, 2]),
    metric("gpu_util_percent_gpu0", [50, 0]),
    metric("gpu_util_percent_gpu1", [60, null]),
    metric("gpu_memory_usage_bytes_gpu0", [5, 4]),
    metric("gpu_memory_usage_bytes_gpu1", [7, 6]),
    metric("gpu_memory_total_bytes", [80, 80]),
  ]);
  expect(made.map(({ title, limit, series }) => [title, limit, series.map((each) => each.values)])).toEqual([
    ["CPU", 100, [[25, 100]]],
    ["Memory", 100, [[10, 20]]],
    ["GPU", 100, [[0, 50], [null, 60]]],
    ["GPU memory", 80, [[4, 5], [6, 7]]],
  ]);
  expect(made[0]?.times[0]).toBeLessThan(made[0]?.times[1] ?? 0);
  expect(charts([])).toEqual([]);
});

test("the network is charted where it is the job's own, each of its measures at its own times", () => {
  const cpu = metric("cpu_usage_percent", [1, 2, 3]);
  expect(charts([cpu]).map(({ title }) => title)).toEqual(["CPU", "Memory"]);
  const received = metric("network_receive_bytes_per_second", [30, 20, 10]);
  const sent = { ...metric("network_transmit_bytes_per_second", [3, 1]), timestamps: [received.timestamps[0], received.timestamps[2]] as string[] };
  const network = charts([cpu, received, sent]).at(-1);
  expect(network?.title).toBe("Network");
  expect(network?.series).toEqual([
    { name: "received", values: [10, 20, 30] },
    { name: "sent", values: [1, null, 3] },
  ]);
  expect(network?.times).toEqual([...(network?.times ?? [])].sort((a, b) => a - b));
});

test("answers of models come in pieces that are cut anywhere", async () => {
  const bytes = new TextEncoder().encode('data: {"choices":[{"delta":{"content":"Hé"}}]}\r\n\r\ndata:{"choices":[{"delta":{"content":"llo"}}]}\n\ndata: [DONE]\n\n');
  const stream = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const byte of bytes) controller.enqueue(Uint8Array.of(byte));
      controller.close();
    },
  });
  let answer = "";
  for await (const data of serverSentData(stream)) answer += chatDelta(data);
  expect(answer).toBe("Héllo");
  expect(() => chatDelta('{"error":{"message":"too long"}}')).toThrow("too long");
  expect(chatDelta("half of {")).toBe("");
});

test("an answer whose last event was not ended is whole", async () => {
  const stream = new Blob(['data: {"a":1}\n\ndata: last']).stream();
  const found: string[] = [];
  for await (const data of serverSentData(stream)) found.push(data);
  expect(found).toEqual(['{"a":1}', "last"]);
});

test("what is further down is asked for again only once somebody wants it, after it did not come", async () => {
  vi.useFakeTimers();
  let asked = 0;
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  const observer = new InfiniteQueryObserver(client, {
    queryKey: ["list"],
    queryFn: async ({ pageParam }) => {
      asked += 1;
      if (pageParam > 0) throw new ApiError(500, [{ text: "broken", place: [] }], null);
      return [pageParam];
    },
    initialPageParam: 0,
    getNextPageParam: () => 1,
  });
  // As tables do: whenever something is drawn whose end is near.
  const stop = observer.subscribe((list) => {
    if (readsOn(list, false) && asked < 100) void list.fetchNextPage();
  });
  await vi.advanceTimersByTimeAsync(10_000);
  expect([asked, observer.getCurrentResult().isFetchNextPageError]).toEqual([2, true]);
  await observer.fetchNextPage();
  expect(asked).toBe(3);
  expect(readsOn({ hasNextPage: true, isFetchingNextPage: false, isFetchNextPageError: false }, true)).toBe(false);
  stop();
  client.clear();
  vi.useRealTimers();
});

test("all pages are read, up to so many rows", async () => {
  const rows = Array.from({ length: 25 }, (_, at) => at);
  const asked: (number | undefined)[] = [];
  const page = (after: number | undefined) => {
    asked.push(after);
    const from = after === undefined ? 0 : after + 1;
    return Promise.resolve(rows.slice(from, from + 10));
  };
  expect(await allPages(page, 10, 100)).toEqual(rows);
  expect(asked).toEqual([undefined, 9, 19]);
  expect(await allPages(page, 10, 20)).toEqual(rows.slice(0, 20));
});
