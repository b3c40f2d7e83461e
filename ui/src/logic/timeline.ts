/** The way of a job, from its events: which status it had, from when to when, and why it ended. */

import type { Event } from "../api/types";

export interface Phase {
  status: string;
  from: string;
  /** Unset while it lasts. */
  to: string | null;
  /** Why the next one came. */
  reason: string | null;
}

const CHANGED = /^(?:Job|Run) status changed (\w+) -> (\w+)(?:\. Termination reason: (\w+))?/;
const CREATED = /^(?:Job created|Run submitted).*Status: (\w+)/;

const FINAL = new Set(["done", "failed", "terminated", "aborted"]);

/** Phases of the thing with this id, oldest first. Events may come in any order. */
export function phases(events: Event[], id: string): Phase[] {
  const own = events.filter((event) => event.targets.some((target) => target.id === id));
  own.sort((a, b) => a.recorded_at.localeCompare(b.recorded_at));
  const found: Phase[] = [];
  for (const event of own) {
    const changed = CHANGED.exec(event.message);
    const status = (changed?.[2] ?? CREATED.exec(event.message)?.[1])?.toLowerCase();
    if (status === undefined) continue;
    const last = found.at(-1);
    if (last?.status === status) continue;
    if (last) {
      last.to = event.recorded_at;
      last.reason = changed?.[3] ? changed[3].toLowerCase().replaceAll("_", " ") : null;
    }
    found.push({ status, from: event.recorded_at, to: FINAL.has(status) ? event.recorded_at : null, reason: null });
  }
  return found;
}
