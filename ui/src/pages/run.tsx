/** One run: its jobs, the way they went, output, measures, events, and everything as JSON. */

import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { lazy, Suspense, useState } from "react";
import { ApiError, serverUrl } from "../api/client";
import * as queries from "../api/queries";
import type { Job, Run } from "../api/types";
import { dstack } from "../logic/cli";
import { money, price, resources } from "../logic/format";
import { mayHaveRollout } from "../logic/rollouts";
import { errorText, finishedAt, hourly, isWaiting, jobFlags, kind, lastSubmission, nameOf, statusText, waitingFor } from "../logic/runs";
import { searchOf } from "../logic/start";
import { isFinished } from "../logic/status";
import { between, duration, exact } from "../logic/time";
import { Alert, Code, Empty, Facts, Failure, Head, Loading, Section, Status, Tabs, Time, useNow } from "../parts/basic";
import { CliButton } from "../parts/dialog";
import { Events } from "../parts/events";
import { fetched } from "../parts/fetched";
import { Inspect } from "../parts/inspect";
import { type Column, Table } from "../parts/table";
import { Phases } from "../parts/phases";
import { Rollout } from "../parts/rollout";
import { RunActions } from "./runs";

const Logs = lazy(() => fetched(import("../parts/logs")).then((module) => ({ default: module.Logs })));
const Waiting = lazy(() => fetched(import("../parts/explained")).then((module) => ({ default: module.Waiting })));
const Metrics = lazy(() => fetched(import("../parts/charts")).then((module) => ({ default: module.Metrics })));

type View = "details" | "logs" | "metrics" | "events" | "inspect";

function useRun(): { p: string; runId: string; jobName?: string; run: Run | undefined; error: unknown } {
  const { p, runId, jobName } = useParams({ strict: false }) as { p: string; runId: string; jobName?: string };
  const isId = /^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(runId);
  const query = useQuery(isId ? queries.run(p, runId) : queries.runByName(p, runId));
  return { p, runId, jobName, run: query.data, error: query.error };
}

export function NotThere({ what, error }: { what: string; error: unknown }) {
  if (error instanceof ApiError && error.isNotFound) {
    return (
      <>
        <Head title={`No such ${what}`} />
        <Empty title={`This ${what} does not exist, or not any more.`}>
          <p>
            <Link to="/runs">To the runs</Link>
          </p>
        </Empty>
      </>
    );
  }
  return (
    <>
      <Head title={`The ${what} cannot be shown`} />
      <Failure error={error} />
    </>
  );
}

export function RunView({ view }: { view: View }) {
  const { p, runId, run, error } = useRun();
  if (!run) return error ? <NotThere what="run" error={error} /> : <Loading what="the run" />;
  const name = nameOf(run);
  const [job] = run.jobs;
  const params = { p, runId };
  return (
    <>
      <Head
        title={name}
        above={
          <>
            <Link to="/runs">Runs</Link> / <Link to="/projects/$p" params={{ p }}>{p}</Link>
          </>
        }
      >
        <Status text={statusText(run)} base={run.status} />
        <CliButton text={[dstack(["run", "get", name], p), dstack(["logs", name, "-f"], p), dstack(["attach", name, "--logs"], p)].join("\n")} />
        <Again run={run} />
        <RunActions runs={[run]} />
      </Head>
      {waitingFor(run) && (
        <Alert>
          Waits for {waitingFor(run)}
          {run.waits_until && <>, until {exact(run.waits_until)}</>}.
        </Alert>
      )}
      {errorText(run) && <Alert kind="bad" title="It failed">{errorText(run)}</Alert>}
      <Tabs
        label="Views of the run"
        tabs={[
          { name: "Details", link: { to: "/projects/$p/runs/$runId", params } },
          { name: "Logs", link: { to: "/projects/$p/runs/$runId/logs", params } },
          { name: "Metrics", link: { to: "/projects/$p/runs/$runId/metrics", params } },
          { name: "Events", link: { to: "/projects/$p/runs/$runId/events", params } },
          { name: "Inspect", link: { to: "/projects/$p/runs/$runId/inspect", params } },
        ]}
      />
      {view === "details" && <Details run={run} />}
      {view === "logs" && <OfJobs run={run}>{(chosen) => <JobLogs run={run} job={chosen} />}</OfJobs>}
      {view === "metrics" && <OfJobs run={run}>{(chosen) => <JobMetrics run={run} job={chosen} />}</OfJobs>}
      {view === "events" && <Events filter={{ within_runs: [run.id] }} />}
      {view === "inspect" && <Inspect value={run} />}
      {!job && view !== "events" && view !== "inspect" && view !== "details" && <Empty title="The run has no jobs yet" />}
    </>
  );
}

/** The same configuration in the editor, to be changed and run again. It is read there: it stands in no address, and in nothing that the browser keeps. */
function Again({ run }: { run: Run }) {
  const search = { project_name: run.project_name, ...searchOf({ kind: "run", project: run.project_name, id: run.id }) };
  return (
    <Link to="/runs/launch" search={search as never} className="button">
      Edit and run
    </Link>
  );
}

/** For runs of several jobs: of which one something is shown. */
function OfJobs({ run, children }: { run: Run; children: (job: Job) => React.ReactNode }) {
  const [name, setName] = useState<string>();
  const job = run.jobs.find((each) => each.job_spec.job_name === name) ?? run.jobs[0];
  if (!job) return null;
  return (
    <>
      {run.jobs.length > 1 && (
        <div className="filters">
          <label>
            Job{" "}
            <select value={job.job_spec.job_name} onChange={(event) => setName(event.target.value)}>
              {run.jobs.map((each) => (
                <option key={each.job_spec.job_name}>{each.job_spec.job_name}</option>
              ))}
            </select>
          </label>
        </div>
      )}
      {children(job)}
    </>
  );
}

function JobLogs({ run, job }: { run: Run; job: Job }) {
  const [chosen, setChosen] = useState<string>();
  const submissions = job.job_submissions;
  const submission = submissions.find((each) => each.id === chosen) ?? submissions.at(-1);
  if (!submission) return <Empty title="The job was not submitted yet" />;
  return (
    <Suspense fallback={<Loading what="output" />}>
      {submissions.length > 1 && (
        <div className="filters">
          <label>
            Attempt{" "}
            <select value={submission.id} onChange={(event) => setChosen(event.target.value)}>
              {submissions.map((each) => (
                <option key={each.id} value={each.id}>
                  {each.submission_num + 1}: {each.status_message}
                </option>
              ))}
            </select>
          </label>
        </div>
      )}
      <Logs key={submission.id} project={run.project_name} run={run.id} runName={nameOf(run)} submission={submission.id} isLive={!isFinished(submission.status)} />
    </Suspense>
  );
}

function JobMetrics({ run, job }: { run: Run; job: Job }) {
  const { replica_num: replica, job_num: number, job_name: name } = job.job_spec;
  const isLive = !isFinished(lastSubmission(job)?.status ?? "done");
  return (
    <Suspense fallback={<Loading what="metrics" />}>
      <Metrics key={name} project={run.project_name} runName={nameOf(run)} runId={run.id} replica={replica} job={number} isLive={isLive} />
    </Suspense>
  );
}

function Details({ run }: { run: Run }) {
  const now = useNow();
  const [job] = run.jobs;
  const submission = job && lastSubmission(job);
  const data = submission?.job_provisioning_data;
  const { configuration } = run.run_spec;
  const end = finishedAt(run);
  const rate = hourly(run);
  return (
    <>
      {mayHaveRollout(run) && <Rollout run={run} />}
      <Section title="General">
        <Facts
          facts={[
            ["Project", <Link key="p" to="/projects/$p" params={{ p: run.project_name }}>{run.project_name}</Link>],
            ["User", <Link key="u" to="/users/$u" params={{ u: run.user }}>{run.user}</Link>],
            ["Type", kind(run)],
            ["Configuration", run.run_spec.configuration_path],
            ["Submitted", <Time key="t" at={run.submitted_at} />],
            ["Duration", duration(between(run.submitted_at, end, now))],
            ["Finished", end && <Time at={end} />],
            ["Fleet", run.fleet && <Link to="/projects/$p/fleets/$id" params={{ p: run.project_name, id: run.fleet.id }}>{run.fleet.name}</Link>],
            ["Price", price(rate)],
            ["Cost so far", run.cost > 0 ? money(run.cost) : null],
            ["Priority", configuration.priority ?? null],
            ["Deployment", run.deployment_num > 0 ? run.deployment_num : null],
            ["Next start", run.next_triggered_at && exact(run.next_triggered_at)],
            ...(run.jobs.length === 1 && data
              ? ([
                  ["Backend", data.backend],
                  ["Region", data.region],
                  ["Instance", data.instance_type.name],
                  ["Host", data.hostname],
                  ["Resources", resources(data.instance_type.resources, true)],
                  ["Spot", data.instance_type.resources.spot ? "yes" : null],
                ] as [string, React.ReactNode][])
              : []),
            ["Probes", submission && submission.probes.length > 0 ? submission.probes.map((probe) => (probe.success_streak > 0 ? "✓" : "–")).join(" ") : null],
          ]}
        />
      </Section>
      <Connect run={run} />
      {isWaiting(run) && (
        <Suspense fallback={<Loading what="why it waits" />}>
          <Waiting run={run} />
        </Suspense>
      )}
      <Phases run={run} />
      {run.jobs.length > 1 && (
        <Section title={`Jobs (${run.jobs.length})`}>
          <Table label="Jobs" columns={jobColumns(run)} rows={run.jobs} idOf={(each) => each.job_spec.job_name} />
        </Section>
      )}
    </>
  );
}

function jobColumns(run: Run): Column<Job>[] {
  const of = lastSubmission;
  return [
    {
      name: "Job",
      cell: (job) => (
        <Link to="/projects/$p/runs/$runId/jobs/$jobName" params={{ p: run.project_name, runId: run.id, jobName: job.job_spec.job_name }} className="name">
          {job.job_spec.job_name}
        </Link>
      ),
    },
    { name: "Status", cell: (job) => <Status text={of(job)?.status_message || of(job)?.status || "waiting"} base={of(job)?.status} /> },
    { name: "Error", cell: (job) => of(job)?.error ?? "" },
    { name: "Where", cell: (job) => of(job)?.job_provisioning_data?.hostname ?? of(job)?.job_provisioning_data?.region ?? "" },
    { name: "Resources", cell: (job) => resources(of(job)?.job_provisioning_data?.instance_type.resources), isMinor: true },
    { name: "Price", cell: (job) => price(of(job)?.job_provisioning_data?.price), isNumber: true, isMinor: true },
    { name: "Attempts", cell: (job) => job.job_submissions.length, isNumber: true, isMinor: true },
    { name: "Submitted", cell: (job) => <Time at={of(job)?.submitted_at} />, isMinor: true },
  ];
}

/** How one gets at a run: the address of a service, its ports, its editor. */
function Connect({ run }: { run: Run }) {
  const name = nameOf(run);
  if (isFinished(run.status)) return null;
  const { configuration } = run.run_spec;
  if (run.service) {
    const url = new URL(run.service.url, `${serverUrl()}/`).href;
    const isWeb = /^https?:/.test(url);
    return (
      <Section title="Reach it">
        {run.service.notice && <Alert kind="warning">{run.service.notice}</Alert>}
        {run.status !== "running" && <p>It answers once it runs.</p>}
        <p>{isWeb ? <a href={url} rel="noreferrer noopener" target="_blank">{url}</a> : url}</p>
        {run.service.model && (
          <p>
            <Link to="/projects/$p/models/$runName" params={{ p: run.project_name, runName: name }}>
              Chat with {run.service.model.name}
            </Link>
          </p>
        )}
      </Section>
    );
  }
  const [job] = run.jobs;
  const ports = (job?.job_spec.app_specs ?? []).filter((app) => app.map_to_port !== null);
  const ide = job?.job_connection_info?.attached_ide_url;
  if (configuration.type === "task" && ports.length === 0) return null;
  return (
    <Section title="Reach it">
      <Code text={dstack(["attach", name, "--logs"], run.project_name)} label="Command to attach" />
      <p className="hint">It forwards the ports to your machine, and knows {name} as an SSH host: <code>ssh {name}</code>.</p>
      {ports.map((app) => (
        <p key={app.app_name}>
          Port {app.port}: <a href={`http://127.0.0.1:${app.map_to_port}`} rel="noreferrer noopener" target="_blank">{`http://127.0.0.1:${app.map_to_port}`}</a>
        </p>
      ))}
      {ide && /^(vscode|cursor|windsurf|zed):/.test(ide) && (
        <p>
          <a className="button primary" href={ide}>Open in {job?.job_connection_info?.ide_name ?? "the editor"}</a>
        </p>
      )}
    </Section>
  );
}

/** Of so many jobs events can be asked for at once. */
const MOST_ATTEMPTS = 16;

export function JobView({ view }: { view: View }) {
  const { p, runId, jobName = "", run, error } = useRun();
  if (!run) return error ? <NotThere what="run" error={error} /> : <Loading what="the job" />;
  const job = run.jobs.find((each) => each.job_spec.job_name === jobName);
  if (!job) return <NotThere what="job" error={new ApiError(404, [{ text: "Job not found", place: [] }], null)} />;
  const params = { p, runId, jobName };
  const submission = lastSubmission(job);
  const data = submission?.job_provisioning_data;
  return (
    <>
      <Head
        title={jobName}
        above={
          <>
            <Link to="/runs">Runs</Link> / <Link to="/projects/$p/runs/$runId" params={{ p, runId }}>{nameOf(run)}</Link>
          </>
        }
      >
        {submission && <Status text={submission.status_message || submission.status} base={submission.status} />}
        <CliButton text={`${dstack(["logs", nameOf(run)], p)}${jobFlags(job)}`} />
      </Head>
      <Tabs
        label="Views of the job"
        tabs={[
          { name: "Details", link: { to: "/projects/$p/runs/$runId/jobs/$jobName", params } },
          { name: "Logs", link: { to: "/projects/$p/runs/$runId/jobs/$jobName/logs", params } },
          { name: "Metrics", link: { to: "/projects/$p/runs/$runId/jobs/$jobName/metrics", params } },
          { name: "Events", link: { to: "/projects/$p/runs/$runId/jobs/$jobName/events", params } },
        ]}
      />
      {view === "details" && submission && (
        <Section title="General">
          {submission.error && <Alert kind="bad">{submission.error}</Alert>}
          <Facts
            facts={[
              ["Status", submission.status_message || submission.status],
              ["Attempt", submission.submission_num + 1],
              ["Submitted", <Time key="s" at={submission.submitted_at} />],
              ["Finished", submission.finished_at && <Time at={submission.finished_at} />],
              ["Exit status", submission.exit_status],
              ["Why it ended", submission.termination_reason_message ?? submission.termination_reason],
              ["Backend", data?.backend],
              ["Region", data?.region],
              ["Instance", data?.instance_type.name],
              ["Host", data?.hostname],
              ["Resources", resources(data?.instance_type.resources, true)],
              ["Price", price(data?.price)],
              ["Image", job.job_spec.image_name],
            ]}
          />
        </Section>
      )}
      {view === "logs" && <JobLogs run={run} job={job} />}
      {view === "metrics" && <JobMetrics run={run} job={job} />}
      {view === "events" && job.job_submissions.length > MOST_ATTEMPTS && <p className="muted">Events of the last {MOST_ATTEMPTS} attempts, of {job.job_submissions.length}.</p>}
      {view === "events" && (submission ? <Events filter={{ target_jobs: job.job_submissions.slice(-MOST_ATTEMPTS).map((each) => each.id) }} /> : <Empty title="No events" />)}
    </>
  );
}
