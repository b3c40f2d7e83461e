/** Filters above a list; what they say stands in the address. */

import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import type { ReactNode } from "react";
import * as queries from "../api/queries";
import { fromSearch, type ListFilters, toSearch } from "../logic/filters";
import { remember, usePreference } from "../preferences";
import { Button, Toggle } from "./basic";

/** Filters of this page: from the address, else as they were left. */
export function useFilters(page: string): [ListFilters & { active: boolean }, (changes: Partial<ListFilters>) => void] {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const [saved] = usePreference(`${page}.active`, "true");
  const filters = fromSearch(search);
  const active = filters.active ?? saved === "true";
  const set = (changes: Partial<ListFilters>) => {
    if (changes.active !== undefined) remember(`${page}.active`, String(changes.active));
    void navigate({ to: ".", search: toSearch({ ...filters, ...changes }) as never, replace: true });
  };
  return [{ ...filters, active }, set];
}

interface Props {
  filters: ListFilters & { active: boolean };
  set: (changes: Partial<ListFilters>) => void;
  activeLabel?: string;
  withUsers?: boolean;
  children?: ReactNode;
}

export function FilterBar({ filters, set, activeLabel, withUsers, children }: Props) {
  const projects = useQuery(queries.projects());
  const users = useQuery({ ...queries.users(), enabled: withUsers === true });
  const isFiltered = filters.project !== undefined || filters.user !== undefined || filters.fleet !== undefined;
  return (
    <div className="filters" role="group" aria-label="Filters">
      <Choice label="Project" all="All projects" value={filters.project} options={projects.data?.map((each) => each.project_name) ?? []} onChange={(project) => set({ project })} />
      {withUsers && (users.data?.length ?? 0) > 1 && (
        <Choice label="User" all="All users" value={filters.user} options={users.data?.map((each) => each.username) ?? []} onChange={(user) => set({ user })} />
      )}
      {activeLabel && <Toggle label={activeLabel} checked={filters.active} onChange={(active) => set({ active })} />}
      {children}
      {isFiltered && (
        <Button kind="plain" onClick={() => set({ project: undefined, user: undefined, fleet: undefined } as Partial<ListFilters>)}>
          Clear filters
        </Button>
      )}
    </div>
  );
}

interface ChoiceProps {
  label: string;
  all: string;
  value: string | undefined;
  options: string[];
  onChange: (value: string | undefined) => void;
}

export function Choice({ label, all, value, options, onChange }: ChoiceProps) {
  const listed = value !== undefined && !options.includes(value) ? [value, ...options] : options;
  return (
    <select aria-label={label} value={value ?? ""} onChange={(event) => onChange(event.target.value || undefined)}>
      <option value="">{all}</option>
      {listed.map((option) => (
        <option key={option} value={option}>
          {option}
        </option>
      ))}
    </select>
  );
}

/** The one project that something new is for: the one in the address, the one that was used last, or the oldest. */
export function useProjectChoice(): { name: string | undefined; names: string[]; set: (name: string | undefined) => void; isLoading: boolean; error: unknown } {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const me = useQuery(queries.me());
  const projects = useQuery(queries.projects());
  const [last] = usePreference("project", "");
  const names = projects.data?.map((each) => each.project_name) ?? [];
  const asked = fromSearch(search).project;
  const name = asked ?? (names.includes(last) ? last : names.at(-1));
  return {
    name,
    names,
    isLoading: projects.isPending || me.isPending,
    error: projects.error ?? me.error,
    set: (next) => {
      if (next) remember("project", next);
      void navigate({ to: ".", search: ((before: object) => ({ ...before, ...toSearch({ project: next } as ListFilters) })) as never, replace: true });
    },
  };
}
