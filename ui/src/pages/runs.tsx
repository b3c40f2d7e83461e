/** All runs. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Run } from "../api/types";
import { dstack, each } from "../logic/cli";
import { count, money, price, resources } from "../logic/format";
import { errorText, finishedAt, hourly, kind, nameOf, onlySubmission, statusText, waitingFor } from "../logic/runs";
import { isFinished } from "../logic/status";
import { Alert, Empty, Failure, Head, Loading, Status, Time } from "../parts/basic";
import { Action, CliButton } from "../parts/dialog";
import { FilterBar, useFilters } from "../parts/filters";
import { FirstSteps } from "../parts/first-steps";
import { type Column, ReadAgain, Table, useSelection } from "../parts/table";

const COLUMNS: Column<Run>[] = [
  {
    name: "Name",
    cell: (run) => (
      <Link to="/projects/$p/runs/$runId" params={{ p: run.project_name, runId: run.id }} className="name">
        {nameOf(run)}
      </Link>
    ),
  },
  {
    name: "Status",
    isWide: true,
    cell: (run) => (
      <>
        <Status text={statusText(run)} base={run.status} />
        {waitingFor(run) && <span className="sub">waits for {waitingFor(run)}</span>}
        {errorText(run) && <span className="sub bad">{errorText(run)}</span>}
      </>
    ),
  },
  { name: "Type", cell: kind, isMinor: true },
  {
    name: "Where",
    cell: (run) => {
      const data = onlySubmission(run)?.job_provisioning_data;
      if (run.jobs.length > 1) return count(run.jobs.length, "job");
      return data ? (
        <>
          {data.backend} {data.region !== data.backend && data.region}
          <span className="sub">
            {resources(data.instance_type.resources)}
            {data.instance_type.resources.spot && " · spot"}
          </span>
        </>
      ) : null;
    },
  },
  { name: "Price", cell: (run) => price(hourly(run)), isNumber: true },
  { name: "Cost", cell: (run) => (run.cost > 0 ? money(run.cost) : ""), isNumber: true, isMinor: true },
  { name: "User", cell: (run) => run.user, isMinor: true },
  {
    name: "Project",
    cell: (run) => (
      <Link to="/projects/$p" params={{ p: run.project_name }}>
        {run.project_name}
      </Link>
    ),
    isMinor: true,
  },
  { name: "Submitted", cell: (run) => <Time at={run.submitted_at} /> },
  { name: "Finished", cell: (run) => <Time at={finishedAt(run)} />, isMinor: true },
];

/** Calls a route of each project that has some of the runs. */
export async function forProjects(runs: Run[], call: (project: string, names: string[]) => Promise<unknown>): Promise<void> {
  const byProject = Map.groupBy(runs, (run) => run.project_name);
  for (const [project, own] of byProject) await call(project, own.map(nameOf));
}

export const stopRuns = (runs: Run[], abort: boolean) =>
  forProjects(runs, (project_name, runs_names) => post("/api/project/{project_name}/runs/stop", { params: { project_name }, body: { runs_names, abort } }));

export const deleteRuns = (runs: Run[]) =>
  forProjects(runs, (project_name, runs_names) => post("/api/project/{project_name}/runs/delete", { params: { project_name }, body: { runs_names } }));

export function RunActions({ runs, after }: { runs: Run[]; after?: () => void }) {
  const client = useQueryClient();
  const active = runs.filter((run) => !isFinished(run.status));
  const finished = runs.filter((run) => isFinished(run.status) && run.deleted !== true);
  const cli = (abort: boolean) => each(active, (run) => dstack(["stop", nameOf(run), ...(abort ? ["-x"] : []), "-y"], run.project_name));
  const then = (call: Promise<void>) => call.then(() => queries.changed(client, "runs", "run")).then(() => after?.());
  const names = (of: Run[]) => (
    <ul>
      {of.slice(0, 10).map((run) => (
        <li key={run.id}>
          {run.project_name}/{nameOf(run)}
        </li>
      ))}
      {of.length > 10 && <li>and {of.length - 10} more</li>}
    </ul>
  );
  return (
    <>
      <Action label="Stop" title={`Stop ${count(active.length, "run")}?`} kind="primary" disabled={active.length === 0} cli={cli(false)} done="Stopping" act={() => then(stopRuns(active, false))}>
        {names(active)}
        <p>Jobs are told to end, and have the time that the run gives them.</p>
      </Action>
      <Action label="Abort" title={`Abort ${count(active.length, "run")}?`} disabled={active.length === 0} cli={cli(true)} done="Aborting" act={() => then(stopRuns(active, true))}>
        {names(active)}
        <p>Jobs are ended at once. What they did not write down is lost.</p>
      </Action>
      <Action label="Delete" title={`Delete ${count(finished.length, "run")}?`} disabled={finished.length === 0} done="Deleted" act={() => then(deleteRuns(finished))}>
        {names(finished)}
        <p>Their output is not shown any more.</p>
      </Action>
    </>
  );
}

export function RunsPage() {
  const [filters, set] = useFilters("runs");
  const list = queries.useListing(queries.runsOf(filters));
  const rows = list.rows.filter((run) => run.deleted !== true);
  const selection = useSelection(rows, (run) => run.id);
  const noFleets = useQuery(queries.withoutFleets());
  const cli = dstack(["ps", ...(filters.active ? [] : ["-a"]), "-v"], filters.project ?? "main");
  const isUnfiltered = filters.project === undefined && filters.user === undefined;
  const any = useQuery({ ...queries.anyRun(), enabled: isUnfiltered && list.data !== undefined && rows.length === 0 });
  const isFirstUse = isUnfiltered && rows.length === 0 && any.data === false;
  const lacking = (noFleets.data ?? []).filter((each) => filters.project === undefined || each.project_name === filters.project);
  return (
    <>
      <Head title="Runs">
        {selection.chosen.length > 0 && <RunActions runs={selection.chosen} after={() => selection.set(new Set())} />}
        <CliButton text={cli} />
        <Link to="/runs/launch" search={(filters.project ? { project_name: filters.project } : {}) as never} className="button primary">
          Launch
        </Link>
      </Head>
      {lacking.length > 0 && !isFirstUse && (
        <Alert title="Nothing can run in some projects yet">
          {lacking.map((each) => (
            <p key={each.project_id}>
              {each.project_name} has no fleet:{" "}
              <Link to="/projects/$p/fleets/add" params={{ p: each.project_name }}>
                add one
              </Link>
            </p>
          ))}
        </Alert>
      )}
      {!isFirstUse && <FilterBar filters={filters} set={set} activeLabel="Active only" withUsers />}
      <Failure error={list.error} />
      {!list.data ? (
        list.isPending && <Loading what="runs" />
      ) : isFirstUse ? (
        <FirstSteps />
      ) : rows.length === 0 ? (
        <NoRuns isFiltered={filters.project !== undefined || filters.user !== undefined} isActiveOnly={filters.active} showAll={() => set({ active: false })} />
      ) : (
        <Table label="Runs" columns={COLUMNS} rows={rows} idOf={(run) => run.id} nameOf={nameOf} selection={selection} more={list.more} />
      )}
      <ReadAgain again={list.again} />
    </>
  );
}

function NoRuns({ isFiltered, isActiveOnly, showAll }: { isFiltered: boolean; isActiveOnly: boolean; showAll: () => void }) {
  return (
    <Empty title={isActiveOnly ? "Nothing runs now" : isFiltered ? "No run matches the filters" : "There are no runs yet"}>
      {isActiveOnly && (
        <p>
          <button type="button" className="button" onClick={showAll}>
            Show finished ones
          </button>
        </p>
      )}
      <p>
        <Link to="/runs/launch">Launch one here</Link>, or with <code>dstack apply</code> in a folder with a <code>.dstack.yml</code>.
      </p>
    </Empty>
  );
}
