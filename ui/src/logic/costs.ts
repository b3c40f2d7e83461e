/** What runs have cost, and cost now. The server counts an attempt of a job from when it was submitted until it was finished, at the price of its machine. */

import type { Run } from "../api/types";
import { hourly, nameOf } from "./runs";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

/** From when on is counted: milliseconds before now. All of what is there where it is not said. */
export const RANGES = { "24h": DAY_MS, "7d": 7 * DAY_MS, "30d": 30 * DAY_MS, all: null } as const;
export type Range = keyof typeof RANGES;
export const GROUPINGS = ["run", "user", "project"] as const;
export type Grouping = (typeof GROUPINGS)[number];

/** A time that is paid for, in milliseconds, with dollars an hour. */
interface Paid {
  from: number;
  to: number;
  price: number;
}

/** When a run was paid for. */
export function paid(run: Run, now: number): Paid[] {
  return run.jobs.flatMap((job) =>
    job.job_submissions.flatMap((submission) => {
      const price = submission.job_provisioning_data?.price;
      if (typeof price !== "number") return [];
      return [{ from: Date.parse(submission.submitted_at), to: submission.finished_at ? Date.parse(submission.finished_at) : now, price }];
    }),
  );
}

function within(times: Paid[], from: number, to: number): number {
  return times.reduce((sum, time) => sum + (time.price * Math.max(0, Math.min(time.to, to) - Math.max(time.from, from))) / HOUR_MS, 0);
}

export interface Group {
  /** What it is grouped by: the id of a run, or a name. */
  key: string;
  name: string;
  project: string | null;
  /** Dollars within the range. */
  cost: number;
  /** Dollars an hour of what runs now. */
  hourly: number;
  runs: number;
  isDeleted: boolean;
}

/** Part of the range, and what it has cost. */
export interface Slice {
  from: number;
  to: number;
  cost: number;
}

export interface Costs {
  total: number;
  hourly: number;
  /** Runs that have cost something within the range, or cost something now. */
  runs: number;
  groups: Group[];
  slices: Slice[];
}

/** So many slices a range has: hours, half days, days. */
const SLICES: Record<Range, number> = { "24h": 24, "7d": 14, "30d": 30, all: 30 };

export function costs(runs: Run[], range: Range, grouping: Grouping, now: number): Costs {
  const known = runs.map((run) => ({ run, times: paid(run, now), hourly: hourly(run) ?? 0 }));
  const length = RANGES[range];
  const first = known.flatMap(({ times }) => times.map((time) => time.from)).reduce((a, b) => Math.min(a, b), now - HOUR_MS);
  const from = length === null ? first : now - length;
  const groups = new Map<string, Group>();
  let counted = 0;
  for (const { run, times, hourly } of known) {
    const cost = within(times, from, now);
    if (cost === 0 && hourly === 0) continue;
    counted += 1;
    const key = grouping === "run" ? run.id : grouping === "user" ? run.user : run.project_name;
    const name = grouping === "run" ? nameOf(run) : key;
    const before = groups.get(key) ?? { key, name, project: grouping === "run" ? run.project_name : null, cost: 0, hourly: 0, runs: 0, isDeleted: grouping === "run" && run.deleted === true };
    groups.set(key, { ...before, cost: before.cost + cost, hourly: before.hourly + hourly, runs: before.runs + 1 });
  }
  const all = [...groups.values()].sort((a, b) => b.cost - a.cost || b.hourly - a.hourly || a.name.localeCompare(b.name));
  const times = known.flatMap((each) => each.times);
  const step = (now - from) / SLICES[range];
  const slices = Array.from({ length: SLICES[range] }, (_, at) => {
    const [start, end] = [from + at * step, from + (at + 1) * step];
    return { from: start, to: end, cost: within(times, start, end) };
  });
  return { total: sum(all.map((group) => group.cost)), hourly: sum(all.map((group) => group.hourly)), runs: counted, groups: all, slices };
}

function sum(numbers: number[]): number {
  return numbers.reduce((a, b) => a + b, 0);
}

function isUnfinished(run: Run): boolean {
  return run.jobs.some((job) => job.job_submissions.some((submission) => !submission.finished_at));
}

/** A run that is over by now, read while it ran: it is counted until the server last looked at it, and costs nothing now. */
function over(run: Run): Run {
  const jobs = run.jobs.map((job) => ({
    ...job,
    job_submissions: job.job_submissions.map((each) => (each.finished_at ? each : { ...each, status: "terminated" as const, finished_at: run.last_processed_at })),
  }));
  return { ...run, jobs };
}

/** Runs of two lists, each once: the newest, and those that run now, which may be older. What is said of those is newer. With `isWhole`, no others run. */
export function together(newest: Run[], active: Run[], isWhole: boolean): Run[] {
  const running = new Map(active.map((run) => [run.id, run]));
  const known = new Set(newest.map((run) => run.id));
  const merged = newest.map((run) => running.get(run.id) ?? (isWhole && isUnfinished(run) ? over(run) : run));
  return [...merged, ...active.filter((run) => !known.has(run.id))];
}

/** Ids of runs that were read while they ran, and run no more: what they have cost is to be read again. */
export function ended(newest: Run[], active: Run[]): string[] {
  const running = new Set(active.map((run) => run.id));
  return newest.filter((run) => isUnfinished(run) && !running.has(run.id)).map((run) => run.id);
}

/** Runs with an attempt that the server may have left out: it lists so many of a job. */
export function cutRuns(runs: Run[], mostAttempts: number): number {
  return runs.filter((run) => run.jobs.some((job) => job.job_submissions.length >= mostAttempts)).length;
}

/** What an address asks for; what is not understood is left out. */
export function costsFrom(search: Record<string, unknown>): { range: Range; grouping: Grouping } {
  const { range, by } = search;
  return {
    range: Object.keys(RANGES).find((each): each is Range => each === range) ?? "7d",
    grouping: GROUPINGS.find((each) => each === by) ?? "run",
  };
}
