/** Writing a configuration, with its plan beside it, and applying it. */

import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useDeferredValue, useEffect, useMemo, useState } from "react";
import { stringify } from "yaml";
import configurationSchema from "../../../docs/schemas/configuration.schema.json";
import { ApiError, post } from "../api/client";
import * as queries from "../api/queries";
import type { FleetPlan, RunPlan } from "../api/types";
import { configurationOf, leftOut } from "../logic/again";
import type { Schema } from "../logic/completion";
import { located, readDraft } from "../logic/draft";
import { fromSearch, toSearch } from "../logic/filters";
import { draftName, keepDraft, keptDraft, tabStorage } from "../logic/kept-draft";
import { updateText } from "../logic/rollouts";
import { keyOf, searchOf, type Start, startOf } from "../logic/start";
import { count } from "../logic/format";
import { isFinished } from "../logic/status";
import { Alert, Button, Code, Copy, Empty, Failure, Head, Loading, Notices, Section } from "../parts/basic";
import { Dialog } from "../parts/dialog";
import { Explained } from "../parts/explained";
import { Choice, useProjectChoice } from "../parts/filters";
import { OfferTable } from "../parts/offer-table";
import Yaml from "../parts/yaml";
import { dstack } from "../logic/cli";
import { say } from "../toasts";
import { NotThere } from "./run";

const TEMPLATES: Record<string, string> = {
  task: `type: task
name: hello

commands:
  - echo "hello from $(hostname)"

resources:
  cpu: 1..
  memory: 0.5GB..
  disk: 1GB..
`,
  service: `type: service
name: web

commands:
  - python3 -m http.server 8000
port: 8000

resources:
  cpu: 1..
  memory: 1GB..
`,
  "dev-environment": `type: dev-environment
name: dev
ide: vscode

resources:
  cpu: 2..
  memory: 8GB..
`,
  fleet: `type: fleet
name: machines

# Machines of the clouds of the project, made when runs need them.
nodes: 0..2
idle_duration: 5m

# Or your own, reached over SSH; their keys are sent by the command line (dstack apply).
`,
  volume: `type: volume
name: data
backend: aws
region: eu-west-1
size: 100GB
`,
  gateway: `type: gateway
name: gateway
backend: aws
region: eu-west-1
domain: example.com
`,
};

/** So long after the last key the plan is asked for, and so often again: machines come and go. */
const PLAN_WAIT_MS = 500;
const PLAN_MS = 10_000;

function useDelayed<T>(value: T, ms: number): T {
  const [delayed, set] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => set(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return delayed;
}

type Planned = { kind: "run"; plan: RunPlan } | { kind: "fleet"; plan: FleetPlan } | { kind: "gateway"; action: string; current: unknown; spec: unknown } | { kind: "volume" };

function runSpec(configuration: Record<string, unknown>) {
  return { run_name: typeof configuration["name"] === "string" ? configuration["name"] : null, configuration } as never;
}

async function planOf(project_name: string, type: string, configuration: Record<string, unknown>, signal: AbortSignal): Promise<Planned> {
  const params = { project_name };
  if (type === "fleet") {
    const plan = await post("/api/project/{project_name}/fleets/get_plan", { params, body: { spec: { configuration, profile: {} } as never }, signal });
    return { kind: "fleet", plan };
  }
  if (type === "gateway") {
    const plan = await post("/api/project/{project_name}/gateways/get_plan", { params, body: { spec: { configuration } as never }, signal });
    return { kind: "gateway", action: plan.action, current: plan.current_resource, spec: plan.spec };
  }
  if (type === "volume") return { kind: "volume" };
  const plan = await post("/api/project/{project_name}/runs/get_plan", { params, body: { run_spec: runSpec(configuration), max_offers: 20, explain: true }, signal });
  return { kind: "run", plan };
}

const NAMES = Object.keys(TEMPLATES);

export function LaunchPage() {
  const start = startOf(useSearch({ strict: false }) as Record<string, unknown>, NAMES);
  const key = keyOf(start);
  switch (start.kind) {
    case "run":
      return <FromRun key={key} startKey={key} project={start.project} id={start.id} />;
    case "project's template":
      return <FromTemplate key={key} startKey={key} name={start.name} />;
    case "text":
      return <Launch key={key} startKey={key} title="Launch" start={start.yaml} />;
    case "template":
      return <Launch key={key} startKey={key} title="Launch" start={TEMPLATES[start.name] ?? ""} />;
  }
}

/** Starts from the configuration of a run as it is when one comes. */
function FromRun({ startKey, project, id }: { startKey: string; project: string; id: string }) {
  const run = useQuery({ ...queries.run(project, id), queryKey: ["run to edit", project, id], refetchInterval: false, ...queries.FOR_EDITING });
  if (!(run.data && run.isFetchedAfterMount)) return run.error ? <NotThere what="run" error={run.error} /> : <Loading what="the run" />;
  const { run_spec: spec } = run.data;
  return <Launch startKey={startKey} title="Launch" start={stringify(configurationOf(spec.run_name, spec.configuration))} leftOut={leftOut(spec)} />;
}

function FromTemplate({ startKey, name }: { startKey: string; name: string }) {
  const choice = useProjectChoice();
  const templates = useQuery(templatesOf(choice.name));
  const template = templates.data?.find((each) => each.name === name);
  if (template) return <Launch key={choice.name} owner={choice.name} startKey={startKey} title="Launch" start={stringify(template.configuration)} />;
  if (templates.isFetching || choice.isLoading) return <Loading what="the template" />;
  const error = choice.error ?? templates.error;
  return error ? <NotThere what="template" error={error} /> : <Launch key={choice.name} owner={choice.name} startKey={startKey} title="Launch" start="" missing={name} />;
}

/** Templates that a project has of its own. */
function templatesOf(project: string | undefined) {
  return queryOptions({
    queryKey: ["templates", project],
    queryFn: ({ signal }) => post("/api/project/{project_name}/templates/list", { params: { project_name: project ?? "" }, signal }),
    enabled: project !== undefined,
    staleTime: 60_000,
  });
}

export function AddFleetPage() {
  const { p } = useParams({ strict: false }) as { p: string };
  return <Launch key={p} startKey="fleet" title="Add fleet" start={TEMPLATES["fleet"] ?? ""} project={p} />;
}

export function AddGatewayPage() {
  const { p } = useParams({ strict: false }) as { p: string };
  return <Launch key={p} startKey="gateway" title="Add gateway" start={TEMPLATES["gateway"] ?? ""} project={p} />;
}

interface LaunchProps {
  title: string;
  start: string;
  /** What tells this start from others: each has a draft of its own. */
  startKey: string;
  /** The project that has what is started from: two may have templates of one name. */
  owner?: string | undefined;
  project?: string;
  leftOut?: string[];
  /** A template that the project does not have. */
  missing?: string;
}

function Launch({ title, start, startKey, owner, project: fixed, leftOut: missed = [], missing }: LaunchProps) {
  const choice = useProjectChoice();
  const project = fixed ?? choice.name;
  const me = useQuery(queries.me());
  const name = draftName(me.data?.id ?? "", `${fixed ?? owner ?? ""} ${title}`, startKey);
  const [before, setBefore] = useState(() => keptDraft(tabStorage(), name));
  const [text, setWritten] = useState(before ?? start);
  const [starts, setStarts] = useState(0);
  const setText = (written: string) => {
    setWritten(written);
    keepDraft(tabStorage(), name, start, written);
  };
  const startAnew = () => {
    setText(start);
    setBefore(null);
    setStarts(starts + 1);
  };
  const startFrom = (wanted: Start) => {
    if (keyOf(wanted) === startKey) startAnew();
    else void navigate({ to: ".", search: ((before: Record<string, unknown>) => ({ ...toSearch(fromSearch(before)), ...searchOf(wanted) })) as never });
  };
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const [isCliOpen, setCliOpen] = useState(false);
  const client = useQueryClient();
  const navigate = useNavigate();
  const templates = useQuery(templatesOf(fixed === undefined ? project : undefined));
  const settled = useDelayed(text, PLAN_WAIT_MS);
  const draft = useMemo(() => readDraft(settled), [settled]);
  const { configuration, type } = draft;
  const planned = useQuery({
    queryKey: ["plan", project, settled],
    queryFn: ({ signal }) => planOf(project ?? "", type ?? "", configuration ?? {}, signal),
    enabled: project !== undefined && configuration !== null && type !== undefined,
    staleTime: 30_000,
    refetchOnWindowFocus: false,
    refetchInterval: PLAN_MS,
    placeholderData: (before) => before,
  });
  const refusal = planned.error ?? error;
  const marks = useMemo(() => {
    if (draft.problems.length > 0) return draft.problems;
    return refusal instanceof ApiError ? located(settled, refusal.problems.filter((problem) => problem.place.length > 0)) : [];
  }, [draft, refusal, settled]);
  const shownMarks = useDeferredValue(marks);
  const isCurrent = settled === text && !planned.isPlaceholderData && planned.isSuccess && configuration !== null;
  const isUpdate = planned.data?.kind === "run" ? planned.data.plan.action === "update" : planned.data?.kind === "fleet" && planned.data.plan.action === "update";

  const apply = async () => {
    if (!project || !configuration || !planned.data) return;
    setBusy(true);
    setError(null);
    const params = { project_name: project };
    const isApplied = () => keepDraft(tabStorage(), name, start, start);
    try {
      const { data } = planned;
      if (data.kind === "run") {
        const run = await post("/api/project/{project_name}/runs/apply", { params, body: { plan: { run_spec: runSpec(configuration), current_resource: data.plan.current_resource as never }, force: false } });
        isApplied();
        await queries.changed(client, "runs");
        await navigate({ to: "/projects/$p/runs/$runId", params: { p: project, runId: run.id } });
      } else if (data.kind === "fleet") {
        const fleet = await post("/api/project/{project_name}/fleets/apply", {
          params,
          body: { plan: { spec: { configuration, profile: {} } as never, current_resource: data.plan.current_resource as never }, force: false },
        });
        isApplied();
        await queries.changed(client, "fleets", "projects");
        await navigate({ to: "/projects/$p/fleets/$id", params: { p: project, id: fleet.id } });
      } else if (data.kind === "gateway") {
        const gateway = await post("/api/project/{project_name}/gateways/apply", { params, body: { plan: { spec: { configuration } as never, current_resource: data.current as never }, force: false } });
        isApplied();
        await queries.changed(client, "gateways");
        await navigate({ to: "/projects/$p/gateways/$name", params: { p: project, name: gateway.name } });
      } else {
        const volume = await post("/api/project/{project_name}/volumes/create", { params, body: { configuration: configuration as never } });
        isApplied();
        await queries.changed(client, "volumes");
        say(`Volume ${volume.name} is being made`);
        await navigate({ to: "/volumes" });
      }
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return (
    <>
      <Head title={title} above={fixed ? <Link to="/projects/$p" params={{ p: fixed }}>{fixed}</Link> : <Link to="/runs">Runs</Link>}>
        {!fixed && <Choice label="Project" all="Choose a project" value={choice.name} options={choice.names} onChange={choice.set} />}
        <Button onClick={() => setCliOpen(true)}>CLI</Button>
        <Copy text={text} label="Copy YAML" />
        <Button kind="primary" busy={isBusy} disabled={isBusy || !isCurrent} onClick={() => void apply()}>
          {isUpdate ? "Update" : type === undefined || ["fleet", "volume", "gateway"].includes(type) ? "Create" : "Launch"}
        </Button>
      </Head>
      {!fixed && (
        <div className="filters" role="group" aria-label="Start from">
          <span className="muted">Start from</span>
          {NAMES.map((name) => (
            <Button key={name} kind="plain" onClick={() => startFrom({ kind: "template", name })}>
              {name}
            </Button>
          ))}
          {templates.data?.map((template) => (
            <Button key={template.name} kind="plain" title={template.description ?? undefined} onClick={() => startFrom({ kind: "project's template", name: template.name })}>
              {template.title}
            </Button>
          ))}
        </div>
      )}
      <Failure error={templates.error} title="The project's templates could not be read" />
      {missing !== undefined && <Alert kind="warning">This project has no template {missing}.</Alert>}
      {before !== null && (
        <Alert title="This is what you have not applied yet">
          This tab kept it.{" "}
          <Button kind="plain" onClick={startAnew}>
            Start anew
          </Button>
        </Alert>
      )}
      {missed.length > 0 && <Alert kind="warning">Of the run, {missed.join(", ")} cannot be taken along: only its configuration is here.</Alert>}
      <Failure error={error} />
      <div className="launch">
        <div className="card editor-card">
          <Yaml key={starts} label="Configuration" text={text} onChange={setText} schema={configurationSchema as unknown as Schema} marks={shownMarks} />
          <p className="hint">Ctrl+Space completes. Files of your own machine are sent by the command line only.</p>
        </div>
        <div className="plan" aria-live="polite">
          {project === undefined && !choice.isLoading && (choice.error ? <Failure error={choice.error} /> : <Empty title="You are in no project" />)}
          {draft.problems.map((problem, at) => (
            <Alert key={at} kind="warning" title="This is not YAML yet">
              {problem.text}
            </Alert>
          ))}
          {configuration !== null && type === undefined && <Alert>Say what it is: task, service, dev-environment, fleet, volume or gateway.</Alert>}
          {planned.error && !planned.isFetching && <Failure error={planned.error} title="The server would refuse this" />}
          {planned.isLoading && <Loading what="the plan" />}
          {planned.data && !planned.error && <Plan planned={planned.data} />}
        </div>
      </div>
      {isCliOpen && (
        <Dialog title="The same on the command line" onClose={() => setCliOpen(false)}>
          <p>Save this as <code>.dstack.yml</code>:</p>
          <Code text={text} label="Configuration" />
          <Code text={dstack(["apply", "-f", ".dstack.yml"], project ?? "main")} label="Command" />
          <div className="dialog-buttons">
            <Button onClick={() => setCliOpen(false)}>Close</Button>
          </div>
        </Dialog>
      )}
    </>
  );
}

function Plan({ planned }: { planned: Planned }) {
  if (planned.kind === "volume") return <Section title="Plan"><p>A volume is made, or taken over if the configuration names one that exists.</p></Section>;
  if (planned.kind === "gateway") return <Section title="Plan"><p>{planned.action === "update" ? "The gateway is changed." : "A gateway is made."}</p></Section>;
  if (planned.kind === "fleet") {
    const { plan } = planned;
    return (
      <Section title="Plan">
        <p>{plan.action === "update" ? "The fleet is changed." : "A fleet is made."}</p>
        <OfferTable offers={plan.offers} total={plan.total_offers} />
        <Notices notices={plan.notices} />
      </Section>
    );
  }
  return <RunPlanView plan={planned.plan} />;
}

function RunPlanView({ plan }: { plan: RunPlan }) {
  const current = plan.current_resource;
  const explanations = plan.explanations ?? [];
  const [first] = plan.job_plans;
  const replaced = plan.action === "create" && current && isFinished(current.status);
  return (
    <>
      {plan.action === "update" && <Alert title="The run is updated in place">{updateText(plan.effective_run_spec ?? plan.run_spec)}</Alert>}
      {plan.action === "create" && current && !replaced && (
        <Alert kind="warning" title={`A run named ${current.run_spec.run_name} is active`}>It cannot be changed in this way: stop it first, or choose another name.</Alert>
      )}
      {replaced && <Alert>The finished run of this name is replaced.</Alert>}
      <Section title={plan.job_plans.length > 1 ? `Plan of ${count(plan.job_plans.length, "job")}` : "Plan"}>
        {plan.job_plans.length > 1 && <p className="muted">These are the offers for the first of them.</p>}
        {first && (first.total_offers > 0 ? <OfferTable offers={first.offers} total={first.total_offers} /> : <NothingFits plan={plan} />)}
        <Notices notices={plan.notices} />
      </Section>
      {explanations.filter((each) => each.fleets.length > 0).map((explanation) => (
        <Explained key={explanation.job_name} explanation={explanation} />
      ))}
    </>
  );
}

function NothingFits({ plan }: { plan: RunPlan }) {
  const hasFleets = (plan.explanations ?? []).some((each) => each.fleets.length > 0);
  if (hasFleets) return <Empty title="Nothing that the project has fits" />;
  return (
    <Empty title="The project has no fleet">
      <p>
        A fleet says which machines its runs may use: <Link to="/projects/$p/fleets/add" params={{ p: plan.project_name }}>add one</Link>
      </p>
    </Empty>
  );
}
