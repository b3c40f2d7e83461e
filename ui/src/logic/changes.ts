/** What the server tells of changes, and what they concern of all that was read. */

import { PAGES } from "./live";

export interface Change {
  kind: string;
  /** Of the thing that changed; null where that is not said. */
  id: string | null;
}

/** Changes in the data of a frame. What is none is left out: a newer server may send more. */
export function changesIn(data: string): Change[] {
  const { changes } = recordOf(parsed(data));
  if (!Array.isArray(changes)) return [];
  return changes.flatMap((each) => {
    const { kind, id } = recordOf(each);
    return typeof kind === "string" ? [{ kind, id: typeof id === "string" ? id : null }] : [];
  });
}

function parsed(data: string): unknown {
  try {
    return JSON.parse(data);
  } catch {
    return null;
  }
}

function recordOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

/** Queries that are to be read again. */
export interface Concerned {
  /** What their keys begin with. */
  key: readonly string[];
  /** Only what is of the thing with this id; null for all of them. */
  of: string | null;
}

/** What each kind of change concerns: the keys of `api/queries.ts`, and of parts that read for themselves. */
export function keysOf({ kind, id }: Change): Concerned[] {
  const all = (...key: string[]): Concerned => ({ key, of: null });
  const own = (key: string): Concerned => ({ key: [key], of: id });
  switch (kind) {
    case "run":
      return [all("runs"), own("run"), own("phases"), own("rollout")];
    case "instance":
      // Fleets are shown with their instances, and a new one is in none that was read.
      return [all("instances"), own("instance"), all("fleets"), all("fleet")];
    case "fleet":
      return [all("fleets"), own("fleet"), all("projects", "without fleets")];
    case "volume":
      return [all("volumes")];
    case "gateway":
      return [all("gateways")];
    case "project":
      // Which gateway is the default one is a setting of the project.
      return [all("projects"), own("project"), all("secrets"), all("templates"), all("gateways")];
    case "user":
      // Projects are shown with their members.
      return [all("users"), own("user"), own("me"), all("tokens"), all("keys"), all("project")];
    case "event":
      return [all("events")];
    default:
      return [];
  }
}

/** What several changes concern, each once. */
export function keysOfAll(changes: Change[]): Concerned[] {
  return [...new Map(changes.flatMap(keysOf).map((each) => [JSON.stringify(each), each])).values()];
}

/** Whether a query with this key and data is one of those. What was not read yet may be. */
export function concerns({ key: start, of }: Concerned, key: readonly unknown[], data: unknown): boolean {
  if (!start.every((part, at) => key[at] === part) || key.at(-1) === PAGES) return false;
  if (of === null || data === undefined || key.includes(of)) return true;
  const { id, project_id } = recordOf(data);
  return id === of || project_id === of;
}

const KINDS = ["run", "instance", "fleet", "volume", "gateway", "project", "user", "event"];
const TOLD = new Set(KINDS.flatMap((kind) => keysOf({ kind, id: null })).map(({ key }) => key[0]));

/** Whether changes of what stands under this key are told at all. Plans, offers and measures are not. */
export function isTold(key: readonly unknown[]): boolean {
  return TOLD.has(key[0] as string) && key.at(-1) !== PAGES;
}
