/** What somebody sees who has no runs yet: three steps to a first one. */

import { useQueries, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { post } from "../api/client";
import { paced } from "../api/pace";
import * as queries from "../api/queries";
import type { Project, User } from "../api/types";
import { firstSteps, type Place, projectsToAsk, projectToStart, type State } from "../logic/first-steps";
import { count } from "../logic/format";
import { hasDraft, tabStorage } from "../logic/kept-draft";
import { rightsIn } from "../logic/rights";
import { Empty, Failure, Loading } from "./basic";

const EXAMPLES = [
  { kind: "task", name: "A task", about: "says hello, and ends" },
  { kind: "service", name: "A service", about: "answers requests until it is stopped" },
  { kind: "dev-environment", name: "A dev environment", about: "a machine for your editor" },
];
const STATES: Record<State, string> = { done: "Done", next: "Next", later: "Later" };
/** So many places are named. */
const MOST_PLACES = 5;
/** Of so many projects it is asked which backends they have. */
const MOST_ASKED = 20;

export function FirstSteps() {
  const me = useQuery(queries.me());
  const projects = useQuery(queries.ownProjects());
  const error = me.error ?? projects.error;
  if (!me.data || !projects.data) return error ? <Failure error={error} /> : <Loading what="what there is" />;
  // The oldest is listed last.
  const project = projects.data.at(-1);
  return project ? <Steps me={me.data} project={project} own={projects.data.map((each) => each.project_name)} /> : <NoProject me={me.data} />;
}

function NoProject({ me }: { me: User }) {
  return (
    <Empty title="You are in no project yet">
      <p>Runs, and what they run on, belong to a project.</p>
      {me.permissions.can_create_projects ? (
        <p>
          <Link to="/projects/add" className="button primary">
            Create a project
          </Link>
        </p>
      ) : (
        <p>
          Ask who administers this server, or a project, to add you. Your name here is <strong>{me.username}</strong>.
        </p>
      )}
      <p>
        Projects that everybody may join are under <Link to="/projects">Projects</Link>.
      </p>
    </Empty>
  );
}

function Steps({ me, project, own }: { me: User; project: Project; own: string[] }) {
  const p = project.project_name;
  const fleets = useQuery({
    queryKey: ["fleets", "first steps"],
    queryFn: ({ signal }) => post("/api/fleets/list", { body: { only_active: true, include_imported: true, limit: 100 }, signal }),
    refetchInterval: paced(queries.LIVE_MS),
  });
  const details = useQuery(queries.project(p));
  const asked = projectsToAsk(fleets.data ?? []).filter((name) => own.includes(name)).slice(0, MOST_ASKED);
  const others = useQueries({ queries: asked.map((name) => queries.project(name)) });
  const known = new Map(others.flatMap(({ data }) => (data ? [[data.project_name, data.backends.map((backend) => String(backend.name))] as const] : [])));
  // Steps that are not known yet would change under the reader.
  const isUnknown = others.some((each) => each.isPending);
  if (!fleets.data || isUnknown) return fleets.error ? <Failure error={fleets.error} /> : <Loading what="what there is to run on" />;
  const { places, states } = firstSteps(fleets.data, hasDraft(tabStorage(), me.id), (name) => known.get(name));
  const [where, what, watch] = states;
  const rights = details.data && rightsIn(details.data, me);
  const backends = details.data?.backends ?? [];
  const search = { project_name: projectToStart(places, own, p) };
  return (
    <section className="card first-steps" aria-labelledby="first-steps">
      <h2 id="first-steps">Three steps to a first run</h2>
      <ol>
        <Step state={where} title="A place to run">
          {places.length > 0 ? <Places places={places} /> : <p>{backends.length > 0 ? `${p} has ${count(backends.length, "backend")}, and no fleet that may use them yet.` : "There is none yet. One of these is enough:"}</p>}
          <ul>
            {places.length === 0 && backends.length > 0 && (
              <li>
                <Link to="/projects/$p/fleets/add" params={{ p }}>Add a fleet</Link>: it says how many machines runs may have made.
              </li>
            )}
            {rights?.manageBackends && (
              <li>
                <Link to="/projects/$p/backends/add" params={{ p }}>{backends.length > 0 ? "Add another cloud" : "Add a cloud"}</Link>, in which machines are made for {p}{backends.length === 0 && ", then a fleet that may use it"}.
              </li>
            )}
            <li>
              Your own machines, over SSH: <code>dstack apply</code> with a fleet that lists them as <code>hosts</code>. Their keys are sent by the command line only.
            </li>
            {places.length === 0 && <li>The machine of the server itself: whoever starts the server offers it, with <code>dstack server --local</code>.</li>}
          </ul>
        </Step>
        <Step state={what} title="Something to run">
          <p>{what === "done" ? "You have begun one, which this tab has kept. Go on, or take another:" : "Each opens in the editor, with its plan beside it:"}</p>
          <ul>
            {EXAMPLES.map((example) => (
              <li key={example.kind}>
                <Link to="/runs/launch" search={{ ...search, kind: example.kind } as never}>{example.name}</Link>: {example.about}
              </li>
            ))}
          </ul>
        </Step>
        <Step state={watch} title="Watch it">
          <p>
            <strong>Launch</strong> leads to the run: how it goes, what it prints, and what it uses. These steps then make room for the list of runs.
          </p>
        </Step>
      </ol>
    </section>
  );
}

function Step({ state, title, children }: { state: State; title: string; children: ReactNode }) {
  return (
    <li className={`step ${state}`} aria-current={state === "next" ? "step" : undefined}>
      <h3>
        {title} <span className="step-state">{STATES[state]}</span>
      </h3>
      {children}
    </li>
  );
}

function Places({ places }: { places: Place[] }) {
  return (
    <ul>
      {places.slice(0, MOST_PLACES).map((place) => (
        <li key={`${place.project} ${place.fleet}`}>
          Fleet <strong>{place.fleet}</strong> of {place.project}:{" "}
          {place.isThisMachine ? "the machine of this server" : place.instances > 0 ? count(place.instances, "machine") : "machines are made when runs need them"}
        </li>
      ))}
      {places.length > MOST_PLACES && <li>and {count(places.length - MOST_PLACES, "more fleet")}</li>}
    </ul>
  );
}
