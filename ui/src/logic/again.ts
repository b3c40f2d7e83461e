/** A run's configuration as somebody would write it: without what is as it would be anyway. */

import type { Run } from "../api/types";

/** What the server fills in where nothing is said. */
const DEFAULTS: Record<string, unknown> = { home_dir: "/root", privileged: false, dstack: false, strip_prefix: true, auth: true };

export function written(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(written);
  if (typeof value !== "object" || value === null) return value;
  const kept: Record<string, unknown> = {};
  for (const [name, field] of Object.entries(value)) {
    if (field === null || field === DEFAULTS[name]) continue;
    const inner = written(field);
    if (isEmpty(inner)) continue;
    kept[name] = asRange(inner);
  }
  return kept;
}

function isEmpty(value: unknown): boolean {
  return typeof value === "object" && value !== null && Object.keys(value).length === 0;
}

/** `{min: 1}` is `1..` in the configuration language, where nothing but a range stands. */
function asRange(value: unknown): unknown {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  const { min, max, ...rest } = value as { min?: unknown; max?: unknown };
  if (Object.keys(rest).length > 0 || (min === undefined && max === undefined)) return value;
  if (min === max) return min;
  return `${(min as number | undefined) ?? ""}..${(max as number | undefined) ?? ""}`;
}

/** Fields of a run's configuration, the telling ones first. */
export function configurationOf(runName: string | null, configuration: object): Record<string, unknown> {
  const { type, name, ...rest } = written(configuration) as Record<string, unknown>;
  return { type, ...((name ?? runName) ? { name: name ?? runName } : {}), ...rest };
}

/** What else a run was made of, for which a configuration has no place, or which the page cannot send. */
export function leftOut({ profile, repo_data, repo_code_hash, file_archives }: Pick<Run["run_spec"], "profile" | "repo_data" | "repo_code_hash" | "file_archives">): string[] {
  const { name: _, ...settings } = (profile ?? {}) as Record<string, unknown>;
  const parts: string[] = [];
  if (Object.keys(written(settings) as object).length > 0) parts.push("its profile");
  if ((repo_data && repo_data.repo_type !== "virtual") || repo_code_hash) parts.push("its repository");
  if (file_archives.length > 0) parts.push("its files");
  return parts;
}
