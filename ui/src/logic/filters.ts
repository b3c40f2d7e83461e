/** Filters of lists, as they stand in the address: a filtered list can be shared. */

export interface ListFilters {
  project?: string;
  user?: string;
  fleet?: string;
  /** Only what is not over. */
  active?: boolean;
}

type Search = Record<string, unknown>;

function text(value: unknown): string | undefined {
  if (typeof value === "number") return String(value);
  return typeof value === "string" && value !== "" ? value : undefined;
}

/** Filters from the address; what is not understood is left out. */
export function fromSearch(search: Search): ListFilters {
  const filters: ListFilters = {};
  const [project, user, fleet] = [text(search["project_name"]), text(search["username"]), text(search["fleet_id"])];
  if (project !== undefined) filters.project = project;
  if (user !== undefined) filters.user = user;
  if (fleet !== undefined) filters.fleet = fleet;
  const active = search["only_active"];
  if (active === true || active === "true") filters.active = true;
  if (active === false || active === "false") filters.active = false;
  return filters;
}

/** The address of filters, with the names that dstack 0.22.5 uses. */
export function toSearch(filters: ListFilters): Search {
  const search: Search = {};
  if (filters.project) search["project_name"] = filters.project;
  if (filters.user) search["username"] = filters.user;
  if (filters.fleet) search["fleet_id"] = filters.fleet;
  if (filters.active !== undefined) search["only_active"] = filters.active;
  return search;
}

/** A path of this page to go to after signing in; anything else is not gone to. */
export function safePath(path: unknown): string {
  if (typeof path !== "string" || !/^\/(?![/\\])/.test(path) || /^\/(auth|logout)(\/|$)/.test(path)) return "/runs";
  return path;
}
