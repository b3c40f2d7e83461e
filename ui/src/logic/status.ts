/** What a status means to a reader. */

export type Tone = "good" | "bad" | "busy" | "waiting" | "over" | "warning";

const TONES: Record<string, Tone> = {
  running: "good",
  done: "good",
  active: "good",
  idle: "good",
  healthy: "good",
  available: "good",
  busy: "busy",
  provisioning: "busy",
  pulling: "busy",
  terminating: "busy",
  submitted: "waiting",
  pending: "waiting",
  retrying: "waiting",
  "no capacity": "warning",
  interrupted: "warning",
  warning: "warning",
  unreachable: "warning",
  failed: "bad",
  error: "bad",
  "no fleets": "bad",
  failure: "bad",
  terminated: "over",
  aborted: "over",
  stopped: "over",
  deleted: "over",
};

export function toneOf(status: string, base = status): Tone {
  if (/^exited \(([^0)]|0\d)/.test(status)) return "bad";
  return TONES[status] ?? TONES[base] ?? "waiting";
}

const FINISHED = new Set(["terminated", "aborted", "failed", "done"]);

export function isFinished(status: string): boolean {
  return FINISHED.has(status);
}
