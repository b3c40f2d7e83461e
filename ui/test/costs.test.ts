import { expect, test } from "vitest";
import type { Run } from "../src/api/types";
import { costs, costsFrom, cutRuns, ended, paid, together } from "../src/logic/costs";

const NOW = Date.parse("2026-03-10T12:00:00Z");
const hoursAgo = (hours: number) => new Date(NOW - hours * 3_600_000).toISOString();

/** A run of one job with attempts of so many hours ago, until so many, at so many dollars an hour. */
function run(name: string, attempts: { from: number; to: number | null; price: number | null }[], more: Partial<Run> = {}): Run {
  const job_submissions = attempts.map(({ from, to, price }) => ({
    submitted_at: hoursAgo(from),
    finished_at: to === null ? null : hoursAgo(to),
    status: to === null ? "running" : "done",
    job_provisioning_data: price === null ? null : { price },
  }));
  return { id: name, run_spec: { run_name: name }, project_name: "main", user: "ada", jobs: [{ job_submissions }], ...more } as unknown as Run;
}

test("time is counted from when an attempt was submitted, at the price of its machine", () => {
  const retried = run("r", [{ from: 10, to: 8, price: 2 }, { from: 8, to: 7, price: null }, { from: 7, to: null, price: 1 }]);
  expect(paid(retried, NOW)).toHaveLength(2);
  expect(costs([retried], "all", "run", NOW)).toMatchObject({ total: 2 * 2 + 7, hourly: 1, runs: 1 });
});

test("of a run that began before the range, the part within it is counted", () => {
  const long = run("long", [{ from: 100, to: null, price: 0.5 }]);
  const over = run("over", [{ from: 90, to: 30, price: 1 }]);
  const day = costs([long, over], "24h", "run", NOW);
  expect(day).toMatchObject({ total: 12, hourly: 0.5, runs: 1, groups: [{ name: "long", cost: 12 }] });
  expect(costs([long, over], "7d", "run", NOW)).toMatchObject({ total: 110, runs: 2, groups: [{ name: "over", cost: 60 }, { name: "long", cost: 50 }] });
});

test("slices add up to the whole, and each has its own part", () => {
  const { slices, total } = costs([run("r", [{ from: 3.5, to: 1, price: 2 }])], "24h", "run", NOW);
  expect(slices).toHaveLength(24);
  expect(slices.slice(-5).map((slice) => slice.cost)).toEqual([0, 1, 2, 2, 0]);
  expect(slices.reduce((sum, slice) => sum + slice.cost, 0)).toBeCloseTo(total, 9);
  const all = costs([run("r", [{ from: 60, to: 0, price: 1 }])], "all", "run", NOW);
  expect(all.slices.every((slice) => Math.abs(slice.cost - 2) < 1e-9)).toBe(true);
});

test("runs are grouped by user and project, the dearest first; what is free is left out", () => {
  const all = [
    run("a", [{ from: 2, to: 1, price: 1 }]),
    run("b", [{ from: 2, to: 0, price: 3 }], { user: "bob", project_name: "other", deleted: true }),
    run("c", [{ from: 2, to: null, price: 0.25 }], { project_name: "other" }),
    run("free", [{ from: 5, to: null, price: 0 }]),
    run("waits", [{ from: 5, to: null, price: null }]),
  ];
  expect(costs(all, "24h", "user", NOW).groups).toMatchObject([{ name: "bob", cost: 6, hourly: 0, runs: 1 }, { name: "ada", cost: 1.5, hourly: 0.25, runs: 2 }]);
  expect(costs(all, "24h", "project", NOW).groups).toMatchObject([{ name: "other", cost: 6.5 }, { name: "main", cost: 1 }]);
  const byRun = costs(all, "24h", "run", NOW);
  expect(byRun.runs).toBe(3);
  expect(byRun.groups[0]).toMatchObject({ name: "b", project: "other", isDeleted: true });
  expect(costs([], "all", "run", NOW)).toMatchObject({ total: 0, hourly: 0, runs: 0, groups: [] });
});

test("what is read twice is counted once, and what is cut is known", () => {
  const [a, b] = [run("a", []), run("b", [{ from: 2, to: 1, price: 1 }, { from: 1, to: 0, price: 1 }])];
  expect(together([a], [a, b], true).map((each) => each.id)).toEqual(["a", "b"]);
  expect([cutRuns([a, b], 2), cutRuns([a, b], 3)]).toEqual([1, 0]);
});

test("what ran when it was read is as the list of those that run says", () => {
  const read = run("r", [{ from: 10, to: null, price: 1 }], { last_processed_at: hoursAgo(8) });
  const retried = run("r", [{ from: 10, to: 9, price: 1 }, { from: 2, to: null, price: 3 }]);
  expect(costs(together([read], [retried], true), "all", "run", NOW)).toMatchObject({ total: 1 + 6, hourly: 3, runs: 1 });
  // It runs no more: it is not counted beyond what was seen of it, and costs nothing now.
  expect(ended([read], [])).toEqual(["r"]);
  expect(costs(together([read], [], true), "all", "run", NOW)).toMatchObject({ total: 2, hourly: 0 });
  // Where not all that run are known, it may run still.
  expect(costs(together([read], [], false), "all", "run", NOW)).toMatchObject({ total: 10, hourly: 1 });
  expect(ended([read, run("over", [{ from: 3, to: 2, price: 1 }])], [retried])).toEqual([]);
});

test("addresses say what is shown", () => {
  expect(costsFrom({ range: "30d", by: "user" })).toEqual({ range: "30d", grouping: "user" });
  expect(costsFrom({ range: "toString", by: ["run"] })).toEqual({ range: "7d", grouping: "run" });
});
