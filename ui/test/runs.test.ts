import { expect, test } from "vitest";
import type { Run } from "../src/api/types";
import { errorText, isWaiting } from "../src/logic/runs";

/** A run with one job, of which these are the attempts. */
const run = (status: string, attempts: { status: string; hasMachine: boolean }[], more: object = {}) =>
  ({ status, jobs: [{ job_submissions: attempts.map((each) => ({ status: each.status, job_provisioning_data: each.hasMachine ? { price: 1 } : null })) }], ...more }) as unknown as Run;

test("a run waits while it has no place, also after one that it has lost", () => {
  expect(isWaiting(run("submitted", [{ status: "submitted", hasMachine: false }]))).toBe(true);
  expect(isWaiting(run("submitted", [{ status: "provisioning", hasMachine: true }]))).toBe(false);
  const lost = { status: "failed", hasMachine: true };
  expect(isWaiting(run("pending", [lost]))).toBe(true);
  expect(isWaiting(run("submitted", [lost, { status: "submitted", hasMachine: false }]))).toBe(true);
  expect(isWaiting(run("running", [{ status: "running", hasMachine: true }]))).toBe(false);
  expect(isWaiting(run("pending", [lost], { next_triggered_at: "2026-03-10T12:00:00Z" }))).toBe(false);
});

test("a replica that was replaced is no failure of a run that goes on", () => {
  const error = (status: string, of: string | null = null) => errorText(run(status, [], { error: of, latest_job_submission: { error: "scaled down" } }));
  expect([error("running"), error("failed"), error("pending")]).toEqual(["", "scaled down", "scaled down"]);
  expect([error("running", "own"), error("failed", "own")]).toEqual(["own", "own"]);
});
