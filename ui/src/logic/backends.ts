/** Types of backends: what they are called, and the fields of their configurations. */

import document from "virtual:backend-schema";
import type { Config } from "./config";
import { type Field, Reader } from "./fields";
import { capitalised } from "./format";

const reader = new Reader(document.schemas);
const mapping = document.schemas[document.root]?.discriminator?.mapping ?? {};

export interface BackendType {
  type: string;
  /** `Google Cloud Platform`. */
  name: string;
  /** Why it is of no use any more; unset of all others. */
  note: string | null;
  fields: Field[];
}

/** What this page knows of a type; `undefined` where it knows none of that name. */
export function backendType(type: string): BackendType | undefined {
  const $ref = Object.hasOwn(mapping, type) ? mapping[type] : undefined;
  if ($ref === undefined) return undefined;
  const schema = reader.resolved({ $ref });
  const [, about = "", note = null] = /^(?:The configuration of the backend for )?(.*?)(?: \((.*)\))?\.?$/.exec(schema.description ?? "") ?? [];
  return { type, name: capitalised(about || type), note, fields: reader.fields(schema) };
}

/** Of the types that a server has, those that have a configuration, by name; those that are of no use any more come last. */
export function backendTypes(known: string[]): BackendType[] {
  const found = known.map(backendType).filter((each) => each !== undefined);
  return found.sort((a, b) => Number(a.note !== null) - Number(b.note !== null) || a.name.localeCompare(b.name));
}

/** What one of this type begins with: the first kind of credentials. */
export function begun({ type, fields }: BackendType): Config {
  const kinds = fields.flatMap(({ key, shape }) => (shape.kind === "variants" ? [[key, { type: shape.variants[0]?.name }]] : []));
  return { type, ...Object.fromEntries(kinds) };
}

/** The first wait for offers that have not come, in milliseconds; each next one is twice as long, up to the longest. */
const FIRST_WAIT_MS = 5000;
const LONGEST_WAIT_MS = 60_000;
/** So long they are asked for by themselves. */
const PATIENCE_MS = 300_000;

/** How long, in milliseconds, until offers are asked for again that were asked for so often; `null` once it is enough. */
export function nextAsk(asked: number): number | null {
  const waits = Array.from({ length: asked }, (_, at) => Math.min(FIRST_WAIT_MS * 2 ** at, LONGEST_WAIT_MS));
  const soFar = waits.reduce((sum, wait) => sum + wait, 0);
  return soFar > PATIENCE_MS ? null : (waits.at(-1) ?? FIRST_WAIT_MS);
}
