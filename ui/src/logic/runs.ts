/** What is shown of a run. */

import type { Job, JobSubmission, Run } from "../api/types";
import { isFinished } from "./status";

export function lastSubmission(job: Job): JobSubmission | undefined {
  return job.job_submissions.at(-1);
}

/** The submission that a run with one job is shown by. */
export function onlySubmission(run: Run): JobSubmission | undefined {
  const [job] = run.jobs;
  if (run.jobs.length > 1) return undefined;
  return (job && lastSubmission(job)) ?? run.latest_job_submission ?? undefined;
}

export function statusText(run: Run): string {
  const latest = run.latest_job_submission;
  if (isFinished(run.status) && run.status !== "done" && run.jobs.length <= 1 && latest?.status_message) return latest.status_message;
  return run.status_message || run.status;
}

/** What holds a run up; what runs waits for nothing that a reader could help. */
export function waitingFor(run: Run): string | null {
  return isFinished(run.status) || run.status === "running" ? null : (run.waiting_for ?? null);
}

/** Whether a run has no place yet, and is not to have one later only, as one that starts by a schedule. */
export function isWaiting(run: Run): boolean {
  // The machine of an attempt that is over is no place any more.
  const isOnItsWay = run.jobs.map(lastSubmission).some((each) => each?.job_provisioning_data && !isFinished(each.status));
  return ["submitted", "pending"].includes(run.status) && !isOnItsWay && !run.next_triggered_at;
}

/** Why it does not run, or does not any more. A replica of a run that goes on, which was replaced or is not needed any more, is no failure of the run. */
export function errorText(run: Run): string {
  const ofJob = run.status === "running" ? null : run.latest_job_submission?.error;
  return run.error ?? ofJob ?? "";
}

/** Dollars an hour of what runs now. */
export function hourly(run: Run): number | null {
  const running = run.jobs.map(lastSubmission).filter((each) => each !== undefined && !isFinished(each.status));
  const prices = running.map((each) => each?.job_provisioning_data?.price).filter((price) => typeof price === "number");
  return prices.length === 0 ? null : prices.reduce((sum, price) => sum + price, 0);
}

export function kind(run: Run): string {
  return run.run_spec.configuration.type;
}

export function finishedAt(run: Run): string | null {
  if (!isFinished(run.status)) return null;
  const times = run.jobs.map((job) => lastSubmission(job)?.finished_at).filter((time) => typeof time === "string");
  return times.sort().at(-1) ?? run.latest_job_submission?.finished_at ?? run.last_processed_at;
}

export function nameOf(run: Run): string {
  return run.run_spec.run_name ?? run.id;
}

/** What `dstack logs` and `dstack metrics` know a job by. */
export function jobFlags(job: Job): string {
  const { replica_num: replica, job_num: number } = job.job_spec;
  return `${replica > 0 ? ` --replica ${replica}` : ""}${number > 0 ? ` --job ${number}` : ""}`;
}

/** Whether a chat with the model of a run is possible now. */
export function servedModel(run: Run): { name: string; base_url: string } | null {
  return run.status === "running" ? (run.service?.model ?? null) : null;
}
