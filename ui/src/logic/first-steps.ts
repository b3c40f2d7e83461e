/** The way of somebody new to a first run: what there is to run on, what they have begun, and what comes next. */

import type { Fleet } from "../api/types";

export type State = "done" | "next" | "later";

export interface Place {
  project: string;
  fleet: string;
  /** Whether it is the machine that the server itself runs on. */
  isThisMachine: boolean;
  /** Instances it has, and whether it may get others. */
  instances: number;
  isElastic: boolean;
}

export interface Steps {
  places: Place[];
  /** Of each step, in order: a place to run, an example, watching it. */
  states: [State, State, State];
}

/** Addresses that mean the server's own machine. */
const HERE = new Set(["127.0.0.1", "localhost", "::1"]);

function hostOf(host: unknown): unknown {
  return typeof host === "object" && host !== null ? (host as { hostname?: unknown }).hostname : host;
}

/** What a fleet is to somebody who looks for a place to run. */
export function placeOf(fleet: Fleet): Place {
  const { ssh_config: ssh, nodes } = fleet.spec.configuration;
  const hosts = (ssh?.hosts ?? []).map(hostOf);
  const max = typeof nodes === "object" && nodes !== null ? (nodes as { max?: number | null }).max : nodes;
  return {
    project: fleet.project_name,
    fleet: fleet.name,
    isThisMachine: hosts.length > 0 && hosts.every((host) => HERE.has(String(host))),
    instances: fleet.instances.filter((instance) => instance.status !== "terminated").length,
    isElastic: !ssh && max !== 0,
  };
}

/** Names of the backends of a project; unset where they are not known. */
export type BackendsOf = (project: string) => string[] | undefined;

/** Whether runs may have machines made in a fleet: it gets others, in a backend that its project has. */
function mayGrow(fleet: Fleet, backendsOf: BackendsOf): boolean {
  const allowed = fleet.spec.configuration.backends;
  const usable = backendsOf(fleet.project_name)?.filter((backend) => !allowed || (allowed as string[]).includes(backend));
  return placeOf(fleet).isElastic && usable !== undefined && usable.length > 0;
}

/** Projects whose backends decide whether there is a place to run. */
export function projectsToAsk(fleets: Fleet[]): string[] {
  const empty = fleets.filter((fleet) => placeOf(fleet).instances === 0 && placeOf(fleet).isElastic);
  return [...new Set(empty.map((fleet) => fleet.project_name))];
}

/** Which steps are done. A fleet that has no instances, and can get none, is no place to run. */
export function firstSteps(fleets: Fleet[], hasBegun: boolean, backendsOf: BackendsOf): Steps {
  const places = fleets.filter((fleet) => placeOf(fleet).instances > 0 || mayGrow(fleet, backendsOf)).map(placeOf);
  if (places.length === 0) return { places, states: ["next", "later", "later"] };
  return { places, states: ["done", hasBegun ? "done" : "next", hasBegun ? "next" : "later"] };
}

/** The project in which an example is launched: one of one's own that has a place to run, `main` before others. Imported fleets are of other projects. */
export function projectToStart(places: Place[], own: string[], main: string): string {
  const possible = places.map((place) => place.project).filter((project) => own.includes(project));
  return possible.includes(main) ? main : (possible[0] ?? main);
}
