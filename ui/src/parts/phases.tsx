/** The way of a run and its jobs, as a picture and in words: which status, from when, for how long, why the next. */

import { useQuery } from "@tanstack/react-query";
import { post } from "../api/client";
import { paced } from "../api/pace";
import { LIVE_MS } from "../api/queries";
import type { Run } from "../api/types";
import { capitalised } from "../logic/format";
import { lastSubmission } from "../logic/runs";
import { isFinished, toneOf } from "../logic/status";
import { between, clock, duration, exactInZone } from "../logic/time";
import { phases, type Phase } from "../logic/timeline";
import { Failure, Section, useNow } from "./basic";

/** Of runs with more jobs, the first are shown. */
const MOST_JOBS = 8;
/** So many events are looked at, the newest: the server gives no more at once. */
const MOST_EVENTS = 100;

export function Phases({ run }: { run: Run }) {
  const now = useNow();
  const events = useQuery({
    queryKey: ["phases", run.id],
    queryFn: ({ signal }) => post("/api/events/list", { body: { within_runs: [run.id], limit: MOST_EVENTS }, signal }),
    refetchInterval: isFinished(run.status) ? false : paced(LIVE_MS),
  });
  const jobs = run.jobs.slice(0, MOST_JOBS).flatMap((job) => {
    const submission = lastSubmission(job);
    return submission ? [{ name: job.job_spec.job_name, way: phases(events.data ?? [], submission.id) }] : [];
  });
  const known = jobs.filter((job) => job.way.length > 0);
  if (known.length === 0 && !events.error) return null;
  const isCut = (events.data?.length ?? 0) >= MOST_EVENTS;
  return (
    <Section title="Time line">
      <Failure error={events.error} title="The time line could not be read" />
      {run.jobs.length > MOST_JOBS && <p className="muted">The first {MOST_JOBS} of {run.jobs.length} jobs are shown.</p>}
      {isCut && <p className="muted">The run has more events than are looked at here: what came first is missing. “Events” has all.</p>}
      {known.map((job) => (
        <Way key={job.name} name={job.name} way={job.way} now={now} />
      ))}
    </Section>
  );
}

function Way({ name, way, now }: { name: string; way: Phase[]; now: number }) {
  const lasting = way.filter((phase) => phase.to !== phase.from);
  const total = lasting.reduce((sum, phase) => sum + between(phase.from, phase.to, now), 0);
  return (
    <div className="way">
      <h3>{name}</h3>
      <div className="way-bar" aria-hidden="true">
        {lasting.map((phase) => {
          // Short phases are still seen.
          const share = Math.max(2, (between(phase.from, phase.to, now) / Math.max(1, total)) * 100);
          return <span key={phase.from + phase.status} className={toneOf(phase.status)} style={{ flexGrow: share }} title={`${phase.status}: ${duration(between(phase.from, phase.to, now))}`} />;
        })}
      </div>
      <ol>
        {way.map((phase) => (
          <li key={phase.from + phase.status} className={toneOf(phase.status)}>
            <time dateTime={phase.from} title={exactInZone(phase.from)}>
              {clock(phase.from)}
            </time>{" "}
            <strong>{capitalised(phase.status)}</strong>
            {phase.to !== phase.from && <span className="muted"> for {duration(between(phase.from, phase.to, now))}</span>}
            {phase.reason && <span className="muted">, ended: {phase.reason}</span>}
          </li>
        ))}
      </ol>
    </div>
  );
}
