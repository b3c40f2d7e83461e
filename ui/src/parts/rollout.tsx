/** The roll-out of a service: how far it is, what both deployments answer, and going on or back by hand. */

import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { post } from "../api/client";
import { pace } from "../api/pace";
import * as queries from "../api/queries";
import type { Rollout as State, Run } from "../api/types";
import { dstack } from "../logic/cli";
import { rightsIn } from "../logic/rights";
import { type Action as Asked, consequence, type Figure, isSplit, isUnderWay, isWorthTelling, mayAsk, nextOf, originOf, type Row, rowsOf, type Rules, rulesOf, type Step, stepsOf, strategyOf } from "../logic/rollouts";
import { nameOf } from "../logic/runs";
import { duration, exactInZone } from "../logic/time";
import { Alert, Coded, Facts, Failure, Section, Time, useNow } from "./basic";
import { Action } from "./dialog";
import { type Column, Table } from "./table";

/** What it counts is told of by nobody, so it is read as often as measures are while one is under way. */
const rolloutOf = (run: Run) =>
  queryOptions({
    queryKey: ["rollout", run.project_name, run.id],
    queryFn: ({ signal }) => post("/api/project/{project_name}/runs/get_rollout", { params: { project_name: run.project_name }, body: { name: nameOf(run) }, signal }).catch(queries.nullWhereUnknown),
    refetchInterval: ({ state: { data } }) => pace(queries.LIVE_MS, data && isUnderWay(data) ? queries.MEASURES_MS : undefined),
  });

export function Rollout({ run }: { run: Run }) {
  const { data: state, error } = useQuery(rolloutOf(run));
  return (
    <>
      <Failure error={error} title="How the roll-out is could not be read" />
      {state && isWorthTelling(state) && <Told run={run} state={state} />}
    </>
  );
}

function Told({ run, state }: { run: Run; state: State }) {
  const rules = rulesOf(run);
  const rows = rowsOf(state, rules, run.deployment_num);
  const origin = originOf(state);
  return (
    <Section title="Roll-out" actions={isUnderWay(state) && <Asks run={run} state={state} rules={rules} />}>
      <div className="rollout">
        {state.phase === "rolled_back" && (
          <Alert kind="warning" title="The last roll-out was rolled back">
            <Time key={state.since} at={state.since} />
            {state.reason && <>: {state.reason}</>}
          </Alert>
        )}
        <Steps steps={stepsOf(state, rules)} />
        {state.phase !== "rolled_back" && <Course run={run} state={state} rules={rules} />}
        {rows.length > 0 && <Table label="Deployments" columns={columns(isSplit(state))} rows={rows} idOf={(row) => String(row.num)} />}
        {origin && <p className="hint">{origin}</p>}
      </div>
    </Section>
  );
}

const STATES: Record<Step["state"], string> = { done: "Done", now: "Now", later: "Later" };

function Steps({ steps }: { steps: Step[] }) {
  if (steps.length === 0) return null;
  return (
    <ol>
      {steps.map((step) => (
        <li key={step.name} className={`step ${step.state === "now" ? "next" : step.state}`} aria-current={step.state === "now" ? "step" : undefined}>
          <h3>
            {step.name} <span className="step-state">{STATES[step.state]}</span>
          </h3>
        </li>
      ))}
    </ol>
  );
}

function Course({ run, state, rules }: { run: Run; state: State; rules: Rules }) {
  const now = useNow();
  const next = nextOf(state, rules, run.deployment_num, now);
  return (
    <>
      <p>
        <Coded text={next.text} />
      </p>
      <Facts
        facts={[
          ["Strategy", strategyOf(state)],
          // Another time begins with what is so now, not with what was when the last one was drawn.
          ["Since", state.since && <Time key={state.since} at={state.since} />],
          [
            "Next step",
            next.at && (
              <time dateTime={next.at} title={exactInZone(next.at)}>
                in {duration((Date.parse(next.at) - now) / 1000)}
              </time>
            ),
          ],
          ["Header for the new replicas", isUnderWay(state) && rules.header && <code>{rules.header}</code>],
        ]}
      />
    </>
  );
}

function columns(isSplit: boolean): Column<Row>[] {
  const figure = (name: string, of: (row: Row) => Figure): Column<Row> => ({ name, cell: (row) => <Measured figure={of(row)} />, isNumber: true });
  const always: Column<Row>[] = [
    {
      name: "Deployment",
      cell: (row) => (
        <>
          <span className="name">Deployment {row.num}</span> <span className="muted">{row.role}</span>
        </>
      ),
    },
    { name: "Replicas", cell: (row) => row.replicas },
  ];
  if (!isSplit) return always;
  return [
    ...always,
    { name: "Share of requests", cell: (row) => row.share, isNumber: true },
    figure("Answers", (row) => row.requests),
    figure("Failed", (row) => row.failed),
    figure("95% begin within", (row) => row.latency),
  ];
}

function Measured({ figure: { text, spoken, note, isBeyond } }: { figure: Figure }) {
  return (
    <>
      {spoken === null ? (
        text
      ) : (
        <>
          <span aria-hidden>{text}</span>
          <span className="off-screen">{spoken}</span>
        </>
      )}
      {note !== "" && <span className={isBeyond ? "sub bad" : "sub"}>{note}</span>}
    </>
  );
}

/** What may be asked of it by those who may stop the run. */
function Asks({ run, state, rules }: { run: Run; state: State; rules: Rules }) {
  const client = useQueryClient();
  const [p, name] = [run.project_name, nameOf(run)];
  const project = useQuery(queries.project(p));
  const me = useQuery(queries.me());
  const isAllowed = project.data && me.data ? rightsIn(project.data, me.data).use : false;
  if (!isAllowed) return null;
  const may = mayAsk(state);
  const ask = async (action: Asked) => {
    await post("/api/project/{project_name}/runs/rollout", { params: { project_name: p }, body: { run_name: name, action } });
    await queries.changed(client, "rollout", "run");
  };
  const cli = (action: Asked) => dstack(["rollout", name, `--${action}`], p);
  return (
    <>
      <Action label="Promote" of="the roll-out" title={`Promote deployment ${run.deployment_num} of ${name}?`} confirm="Promote" kind="primary" disabled={!may.promote} cli={cli("promote")} done="Promoted: it goes on as soon as it can" act={() => ask("promote")}>
        <p>{consequence("promote", state, rules)}</p>
      </Action>
      <Action label="Abort" of="the roll-out" title={`Abort the roll-out of ${name}?`} confirm="Abort the roll-out" disabled={!may.abort} cli={cli("abort")} done="Aborted: it is rolled back as soon as it can be" act={() => ask("abort")}>
        <p>{consequence("abort", state, rules)}</p>
      </Action>
    </>
  );
}
