/** What is read from the server, under which key, and how often. */

import { type QueryClient, queryOptions, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { allPages, PAGES, type Pages, readsOn, withHead } from "../logic/live";
import { eachOf } from "../logic/turns";
import { ApiError, post } from "./client";
import { useFurther } from "./further";
import { pace, paced } from "./pace";
import type { Meta } from "./refresher";
import type { Event, EventsRequest, Fleet, Gateway, Instance, Project, Run, User, Volume } from "./types";

/** How often what is shown is asked for again while the server does not tell of changes, in milliseconds. Hidden pages ask nothing. */
export const LIVE_MS = 3000;
const SLOW_MS = 15000;
/** How often measures are asked for again, of which nothing is told. */
export const MEASURES_MS = 10_000;

export const me = () =>
  queryOptions({ queryKey: ["me"], queryFn: ({ signal }) => post("/api/users/get_my_user", { signal }), staleTime: 60_000 });

export const serverInfo = () =>
  queryOptions({ queryKey: ["server"], queryFn: ({ signal }) => post("/api/server/get_info", { signal }), staleTime: Infinity });

/** So many projects and users are listed, the newest: the server gives no more at once. */
export const MOST_LISTED = 2000;

export const projects = () =>
  queryOptions({
    queryKey: ["projects"],
    queryFn: async ({ signal }) => (await post("/api/projects/list", { body: { limit: MOST_LISTED }, signal })) as Project[],
    staleTime: 30_000,
  });

/** Projects that one is a member of; of administrators, all. */
export const ownProjects = () =>
  queryOptions({
    queryKey: ["projects", "own"],
    queryFn: async ({ signal }) => (await post("/api/projects/list", { body: { limit: MOST_LISTED, include_not_joined: false }, signal })) as Project[],
    staleTime: 30_000,
  });

/** Whether there is any run at all, also one that is over. */
export const anyRun = () =>
  queryOptions({
    queryKey: ["runs", "any"],
    queryFn: async ({ signal }) => (await post("/api/runs/list", { body: { limit: 1, include_jobs: false }, signal })).length > 0,
    refetchInterval: paced(LIVE_MS),
  });

export const project = (name: string) =>
  queryOptions({
    queryKey: ["project", name],
    queryFn: ({ signal }) => post("/api/projects/{project_name}/get", { params: { project_name: name }, signal }),
    refetchInterval: paced(SLOW_MS),
  });

export const users = () =>
  queryOptions({
    queryKey: ["users"],
    queryFn: async ({ signal }) => (await post("/api/users/list", { body: { limit: MOST_LISTED }, signal })) as User[],
    refetchInterval: paced(SLOW_MS),
  });

export const run = (projectName: string, id: string) =>
  queryOptions({
    queryKey: ["run", projectName, id],
    queryFn: ({ signal }) => post("/api/project/{project_name}/runs/get", { params: { project_name: projectName }, body: { id }, signal }),
    refetchInterval: paced(LIVE_MS),
  });

export const runByName = (projectName: string, name: string) =>
  queryOptions({
    queryKey: ["run", projectName, name],
    queryFn: ({ signal }) =>
      post("/api/project/{project_name}/runs/get", { params: { project_name: projectName }, body: { run_name: name }, signal }),
    refetchInterval: paced(LIVE_MS),
  });

export const fleet = (projectName: string, id: string) =>
  queryOptions({
    queryKey: ["fleet", projectName, id],
    queryFn: ({ signal }) => post("/api/project/{project_name}/fleets/get", { params: { project_name: projectName }, body: { id }, signal }),
    refetchInterval: paced(LIVE_MS),
  });

export const instance = (projectName: string, id: string) =>
  queryOptions({
    queryKey: ["instance", projectName, id],
    queryFn: ({ signal }) => post("/api/project/{project_name}/instances/get", { params: { project_name: projectName }, body: { id }, signal }),
    refetchInterval: paced(LIVE_MS),
  });

export const gateways = (projectName: string) =>
  queryOptions({
    queryKey: ["gateways", projectName],
    queryFn: ({ signal }) =>
      post("/api/project/{project_name}/gateways/list", { params: { project_name: projectName }, body: { include_imported: true }, signal }),
    refetchInterval: paced(SLOW_MS),
  });

/** So many projects are asked at the same time. */
const AT_ONCE = 4;

/** Gateways of several projects; projects that do not show theirs have none here. */
export const allGateways = (names: string[]) =>
  queryOptions({
    queryKey: ["gateways", "all", ...names],
    queryFn: async ({ signal }) => {
      const lists = await eachOf(names, AT_ONCE, (name) =>
        post("/api/project/{project_name}/gateways/list", { params: { project_name: name }, body: {}, signal }).catch(noneWhereRefused),
      );
      return lists.flat() as Gateway[];
    },
    refetchInterval: paced(SLOW_MS),
  });

/** Projects that one may not look into, or that are gone meanwhile, have nothing to show; what else fails is not "none". */
export function noneWhereRefused(error: unknown): [] {
  if (error instanceof ApiError && !error.isSignedOut && (error.status === 403 || error.isNotFound)) return [];
  throw error;
}

/** What the route of a newer server tells is nothing at an older one, which does not have it; what else fails is not "nothing". */
export function nullWhereUnknown(error: unknown): null {
  if (error instanceof ApiError && error.status === 404) return null;
  throw error;
}

/**
 * How a thing is read that is about to be edited: as it is now, and not again. What is shown is what the edit began with, so
 * nothing older is taken for it; what came since is found when it is saved.
 */
export const FOR_EDITING = { gcTime: 0, staleTime: Infinity, refetchOnMount: "always", refetchOnReconnect: false } as const;

export const secrets = (projectName: string) =>
  queryOptions({
    queryKey: ["secrets", projectName],
    queryFn: ({ signal }) => post("/api/project/{project_name}/secrets/list", { params: { project_name: projectName }, signal }),
  });

export const withoutFleets = () =>
  queryOptions({
    queryKey: ["projects", "without fleets"],
    queryFn: ({ signal }) => post("/api/projects/list_only_no_fleets", { signal }),
    staleTime: 30_000,
  });

/** A list that is read page by page, and of which the first page is kept current. */
export interface Listing<T> {
  key: unknown[];
  page: (after: T | undefined, limit: number, signal: AbortSignal) => Promise<T[]>;
  idOf: (row: T) => string;
  /** How changes of its rows are told; unset where they never change. */
  kind?: "run" | "fleet" | "instance" | "volume";
  /** So many rows are kept; all where it is not said. */
  most?: number;
}

const PAGE = 100;

export function useListing<T>({ key, page, idOf, kind, most = Infinity }: Listing<T>) {
  const client = useQueryClient();
  const pagesKey = [...key, PAGES];
  const pages = useInfiniteQuery({
    queryKey: pagesKey,
    queryFn: ({ pageParam, signal }) => page(pageParam as T | undefined, PAGE, signal),
    initialPageParam: undefined as T | undefined,
    getNextPageParam: (last: T[]) => (last.length < PAGE ? undefined : last.at(-1)),
    refetchOnWindowFocus: false,
  });
  const head = useQuery({
    queryKey: [...key, "head"],
    queryFn: ({ signal }) => page(undefined, PAGE, signal),
    refetchInterval: paced(LIVE_MS),
    enabled: pages.isSuccess,
  });
  useFurther(pagesKey, kind, page, { limit: PAGE, most, idOf });
  const newest = head.data;
  const parts = pages.data?.pages.length;
  useEffect(() => {
    if (newest === undefined) return;
    client.setQueryData<Pages<T>>(pagesKey, (known) => known && withHead(known, newest, { limit: PAGE, most, idOf }));
    // The key is made anew each time; what it says is in `newest`. A page that was fetched meanwhile may stand behind rows that are not there any more.
  }, [newest, parts]);
  const rows = useMemo(() => pages.data?.pages.flat() ?? [], [pages.data]);
  const isFull = rows.length >= most;
  const readOn = () => void pages.fetchNextPage();
  return {
    ...pages,
    rows,
    isFull,
    error: pages.error ?? head.error,
    /** Reads what is further down; unset where there is nothing, or it did not come. */
    more: readsOn(pages, isFull) ? readOn : undefined,
    /** Reads what did not come. */
    again: pages.isFetchNextPageError && !pages.isFetchingNextPage ? readOn : undefined,
  };
}

export const runsOf = (filters: { project?: string; user?: string; active: boolean }): Listing<Run> => ({
  key: ["runs", filters],
  kind: "run",
  idOf: (row) => row.id,
  page: (after, limit, signal) =>
    post("/api/runs/list", {
      body: {
        project_name: filters.project ?? null,
        username: filters.user ?? null,
        only_active: filters.active,
        limit,
        job_submissions_limit: 1,
        ...(after && { prev_submitted_at: after.submitted_at, prev_run_id: after.id }),
      },
      signal,
    }),
});

/** The most attempts of a job that the server lists. */
export const MOST_ATTEMPTS = 10;

/** Runs with all that they cost: the server adds up the attempts that it lists. */
export const costsOf = (filters: { project?: string; user?: string; active?: boolean }): Listing<Run> => ({
  key: ["runs", "costs", filters],
  kind: "run",
  idOf: (row) => row.id,
  page: (after, limit, signal) =>
    post("/api/runs/list", {
      body: {
        project_name: filters.project ?? null,
        username: filters.user ?? null,
        only_active: filters.active ?? false,
        limit,
        job_submissions_limit: MOST_ATTEMPTS,
        ...(after && { prev_submitted_at: after.submitted_at, prev_run_id: after.id }),
      },
      signal,
    }),
});

/** So many runs that run now are read; beyond that not all are known. */
export const MOST_ACTIVE = 1000;

/** All runs that run now, with all that they cost. Those of more than one page are read less often. */
export const activeCosts = (filters: { project?: string; user?: string }) =>
  queryOptions({
    queryKey: ["runs", "costs", "active", filters],
    queryFn: async ({ signal }) => {
      const runs = await allPages((after: Run | undefined) => costsOf({ ...filters, active: true }).page(after, PAGE, signal), PAGE, MOST_ACTIVE);
      return { runs, isWhole: runs.length < MOST_ACTIVE };
    },
    refetchInterval: (own) => pace((own.state.data?.runs.length ?? 0) < PAGE ? LIVE_MS : SLOW_MS),
    meta: { gapMs: LIVE_MS } satisfies Meta,
  });

export const fleetsOf = (filters: { project?: string; active: boolean }): Listing<Fleet> => ({
  key: ["fleets", filters],
  kind: "fleet",
  idOf: (row) => row.id,
  page: (after, limit, signal) =>
    post("/api/fleets/list", {
      body: {
        project_name: filters.project ?? null,
        only_active: filters.active,
        include_imported: true,
        limit,
        ...(after && { prev_created_at: after.created_at, prev_id: after.id }),
      },
      signal,
    }),
});

export const instancesOf = (filters: { project?: string; fleet?: string; active: boolean }): Listing<Instance> => ({
  key: ["instances", filters],
  kind: "instance",
  idOf: (row) => row.id,
  page: (after, limit, signal) =>
    post("/api/instances/list", {
      body: {
        project_names: filters.project ? [filters.project] : null,
        fleet_ids: filters.fleet ? [filters.fleet] : null,
        only_active: filters.active,
        include_imported: true,
        limit,
        ...(after && { prev_created_at: after.created, prev_id: after.id }),
      },
      signal,
    }),
});

export const volumesOf = (filters: { project?: string; active: boolean }): Listing<Volume> => ({
  key: ["volumes", filters],
  kind: "volume",
  idOf: (row) => row.id,
  page: (after, limit, signal) =>
    post("/api/volumes/list", {
      body: {
        project_name: filters.project ?? null,
        only_active: filters.active,
        limit,
        ...(after && { prev_created_at: after.created_at, prev_id: after.id }),
      },
      signal,
    }),
});

/** So many events are kept of those that come in while the page is open, and of those before. */
export const MOST_EVENTS = 2000;

export const eventsOf = (filter: EventsRequest): Listing<Event> => ({
  key: ["events", filter],
  most: MOST_EVENTS,
  idOf: (row) => row.id,
  page: (after, limit, signal) =>
    post("/api/events/list", {
      body: { ...filter, limit, ...(after && { prev_recorded_at: after.recorded_at, prev_id: after.id }) },
      signal,
    }),
});

/** So long, in milliseconds, what was done waits to be seen in what is shown. */
const MOST_CHANGED_MS = 5000;

/** Reads anew what a change may have changed. Ends once that is read, or soon: it goes on being read, and the change is made in any case. */
export function changed(client: QueryClient, ...keys: string[]): Promise<void> {
  const all = Promise.all(keys.map((key) => client.invalidateQueries({ queryKey: [key] })));
  const soon = new Promise((resolve) => setTimeout(resolve, MOST_CHANGED_MS));
  return Promise.race([all, soon]).then(() => undefined);
}
