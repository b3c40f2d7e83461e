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

/** Which steps are done. A fleet that has no instances, and gets none, is no place to run. */
export function firstSteps(fleets: Fleet[], hasBegun: boolean): Steps {
  const places = fleets.map(placeOf).filter((place) => place.instances > 0 || place.isElastic);
  if (places.length === 0) return { places, states: ["next", "later", "later"] };
  return { places, states: ["done", hasBegun ? "done" : "next", hasBegun ? "next" : "later"] };
}
