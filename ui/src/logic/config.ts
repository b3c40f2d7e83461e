/** A configuration as a form edits it: read and changed by place, with secrets taken out and put back. */

import { isMap, isScalar, parseDocument, stringify } from "yaml";
import type { Problem } from "../api/errors";
import { readDraft } from "./draft";
import type { Field, Shape } from "./fields";

export type Config = Record<string, unknown>;
export type Path = (string | number)[];

function isObject(value: unknown): value is Config {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A path as one text, to find its field by. */
export function pathKey(path: Path): string {
  return JSON.stringify(path);
}

export function valueAt(config: unknown, path: Path): unknown {
  let here = config;
  for (const step of path) {
    if (!isObject(here) && !Array.isArray(here)) return undefined;
    here = (here as Record<string | number, unknown>)[step];
  }
  return here;
}

/** The same with another value there. Without one the field is gone, and so is an object that it was the last field of. */
export function withValue<T>(config: T, path: Path, value: unknown): T {
  const [step, ...rest] = path;
  if (step === undefined) return value as T;
  const inner = rest.length === 0 ? value : withValue(valueAt(config, [step]) ?? (typeof rest[0] === "number" ? [] : {}), rest, value);
  if (typeof step === "number") {
    const items = Array.isArray(config) ? [...(config as unknown[])] : [];
    items[step] = inner;
    return items as T;
  }
  const { [step]: _, ...others } = (isObject(config) ? config : {}) as Config;
  const isGone = inner === undefined || (isObject(inner) && Object.keys(inner).length === 0);
  if (isGone) return others as T;
  // What is there stays where it stands.
  return (isObject(config) && step in config ? { ...config, [step]: inner } : { ...others, [step]: inner }) as T;
}

/** Without fields that say nothing, as the API fills them in. */
export function tidy<T>(value: T): T {
  if (Array.isArray(value)) return value.map(tidy) as T;
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).flatMap(([key, each]) => (each === null || each === undefined ? [] : [[key, tidy(each)]]))) as T;
}

/** The fields of a value of this shape; of variants, those of the one that it is. */
export function fieldsOf(shape: Shape, value: unknown): Field[] {
  if (shape.kind === "group") return shape.fields;
  if (shape.kind !== "variants") return [];
  const type = valueAt(value, ["type"]);
  const only = shape.variants.length === 1 ? shape.variants[0] : undefined;
  return (shape.variants.find((variant) => variant.name === type) ?? (type === undefined ? only : undefined))?.fields ?? [];
}

/** A place of a configuration that has, or may have, a secret. */
interface Secret {
  path: Path;
  isRequired: boolean;
}

/** The secrets that a configuration has room for as it is. */
export function secretsOf(fields: Field[], config: unknown, above: Path = []): Secret[] {
  return fields.flatMap(({ key, isRequired, shape }): Secret[] => {
    const path = [...above, key];
    const value = valueAt(config, [key]);
    if (shape.kind === "secret") return [{ path, isRequired }];
    if (shape.kind === "list") {
      const items = Array.isArray(value) ? (value as unknown[]) : [];
      return items.flatMap((item, at) => secretsOf(fieldsOf(shape.item, item), item, [...path, at]));
    }
    return secretsOf(fieldsOf(shape, value), value, path);
  });
}

/** What may be shown of a configuration. */
export function withoutSecrets(fields: Field[], config: Config): Config {
  return secretsOf(fields, config).reduce((shown, { path }) => withValue(shown, path, undefined), config);
}

/** Fields that say where a secret beside or below them is sent. */
const ADDRESSES = ["url", "hostname", "port"];

/** A place in what was saved, and whether what stands there goes to where it went. */
interface Before {
  path: Path;
  isSameAddress: boolean;
}

/** The same place in what was saved: items of lists are known by name, and credentials of another kind are others. */
function placeBefore(before: Config, now: Config, path: Path): Before | null {
  const found: Path = [];
  let isSameAddress = true;
  for (const [at, step] of path.entries()) {
    const own = valueAt(now, path.slice(0, at));
    const old = valueAt(before, found);
    if (isObject(own) && own["type"] !== valueAt(old, ["type"])) return null;
    if (isObject(own)) isSameAddress &&= ADDRESSES.every((key) => (own[key] ?? null) === (valueAt(old, [key]) ?? null));
    if (typeof step !== "number") {
      found.push(step);
      continue;
    }
    const name = valueAt(now, [...path.slice(0, at + 1), "name"]);
    const same = Array.isArray(old) ? old.findIndex((item) => valueAt(item, ["name"]) === name) : -1;
    if (name === undefined || same < 0) return null;
    found.push(same);
  }
  return { path: found, isSameAddress };
}

function savedSecret(before: Config | undefined, now: Config, path: Path): { secret: unknown; isSameAddress: boolean } | undefined {
  if (before === undefined || valueAt(now, path) !== undefined) return undefined;
  const place = placeBefore(before, now, path);
  const secret = place === null ? undefined : (valueAt(before, place.path) ?? undefined);
  return place === null || secret === undefined ? undefined : { secret, isSameAddress: place.isSameAddress };
}

/** The secret of this place that was saved, and stays unless another is typed or it is taken away (`null`). To another address it is not sent. */
export function keptSecret(before: Config | undefined, now: Config, path: Path): unknown {
  const saved = savedSecret(before, now, path);
  return saved?.isSameAddress ? saved.secret : undefined;
}

/** Whether a secret was saved here that is not sent, as it would go to another address. */
export function isWithheld(before: Config | undefined, now: Config, path: Path): boolean {
  return savedSecret(before, now, path)?.isSameAddress === false;
}

/** What is sent: with the secrets that were saved, where none stands in their place. */
export function complete(fields: Field[], config: Config, before: Config | undefined): Config {
  const whole = secretsOf(fields, config).reduce((sent, { path }) => {
    const kept = keptSecret(before, config, path);
    return kept === undefined ? sent : withValue(sent, path, kept);
  }, config);
  return tidy(whole);
}

/** Required fields that nothing stands in, in their order. */
export function lacking(fields: Field[], config: unknown, above: Path = []): Problem[] {
  return fields.flatMap(({ key, isRequired, shape }): Problem[] => {
    const place = [...above, key];
    const value = valueAt(config, [key]);
    if (value === undefined || value === null || value === "") {
      if (!isRequired) return [];
      const inner = fieldsOf(shape, value);
      return inner.length > 0 ? lacking(inner, value, place) : [{ text: "This is needed.", place }];
    }
    if (shape.kind === "list") {
      const items = Array.isArray(value) ? (value as unknown[]) : [];
      if (isRequired && items.length === 0) return [{ text: "One at least is needed.", place }];
      return items.flatMap((item, at) => (isObject(item) ? lacking(fieldsOf(shape.item, item), item, [...place, at]) : []));
    }
    return lacking(fieldsOf(shape, value), value, place);
  });
}

/** What must be typed before this can be saved: what is needed, and secrets that go to another address than those that were saved. */
export function unready(fields: Field[], config: Config, before: Config | undefined): Problem[] {
  const withheld = secretsOf(fields, config)
    .filter(({ path }) => isWithheld(before, config, path))
    .map(({ path, isRequired }) => ({
      text: `What was saved is not sent to another address: type it again${isRequired ? "" : ", or take it away"}.`,
      place: path,
    }));
  const said = new Set(withheld.map(({ place }) => pathKey(place)));
  return [...lacking(fields, complete(fields, config, before)).filter(({ place }) => !said.has(pathKey(place))), ...withheld];
}

/** The field that the server means. On the way, it may name the kind of a backend or of credentials, which are no fields. */
export function fieldAt(fields: Field[], config: unknown, place: Path): Path | null {
  return below(fields, config, place, []);
}

function below(fields: Field[], value: unknown, place: Path, above: Path): Path | null {
  const [step, ...rest] = place;
  if (step === undefined) return above.length > 0 ? above : null;
  const field = fields.find((each) => each.key === step);
  // A name of a kind of credentials may be one of its fields, too.
  const isKind = valueAt(value, ["type"]) === step && rest.length > 0;
  if (!field || (isKind && fields.some((each) => each.key === rest[0]))) return below(fields, value, rest, above);
  const own = valueAt(value, [field.key]);
  const path = [...above, field.key];
  if (field.shape.kind !== "list") return below(fieldsOf(field.shape, own), own, rest, path) ?? path;
  const at = rest.findIndex((each) => typeof each === "number");
  const index = rest[at];
  if (typeof index !== "number") return path;
  const item = valueAt(own, [index]);
  return below(fieldsOf(field.shape.item, item), item, rest.slice(at + 1), [...path, index]) ?? [...path, index];
}

/** Problems at their fields, and those that belong to none. */
export function placed(fields: Field[], config: unknown, problems: Problem[]): { at: Map<string, string>; first: Path | null; others: Problem[] } {
  const at = new Map<string, string>();
  const others: Problem[] = [];
  let first: Path | null = null;
  for (const problem of problems) {
    const path = problem.place.length > 0 ? fieldAt(fields, config, problem.place) : null;
    if (path === null) {
      others.push(problem);
      continue;
    }
    first ??= path;
    const key = pathKey(path);
    const said = at.get(key);
    at.set(key, said === undefined ? problem.text : `${said} ${problem.text}`);
  }
  return { at, first, others };
}

/** Names of what a form has no fields for: those are left as they are. */
export function unknownFields(fields: Field[], config: Config): string[] {
  return Object.keys(config).filter((key) => key !== "type" && !fields.some((field) => field.key === key));
}

/** A configuration as text, with what was written around it: the text that it was read from changes only where it has. */
export function toYaml(config: Config, before: string): string {
  const draft = readDraft(before);
  if (draft.configuration === null) return before.trim() === "" ? stringify(config) : before;
  if (JSON.stringify(draft.configuration) === JSON.stringify(config)) return before;
  const kept = brought(before, draft.configuration, config);
  // Names that are no texts, and nodes that are used twice, cannot be changed in their place: what is written says the same in any case.
  return kept !== null && isSame(readDraft(kept).configuration, config) ? kept : stringify(config, { aliasDuplicateObjects: false });
}

/** The text with these changes made in it; `null` where that cannot be written. */
function brought(before: string, old: Config, now: Config): string | null {
  try {
    const document = parseDocument(before);
    bring(document, [], old, now);
    return String(document);
  } catch {
    return null;
  }
}

/** Whether both say the same, in whatever order their fields stand. */
function isSame(a: unknown, b: unknown): boolean {
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((each, at) => isSame(each, b[at]));
  if (!isObject(a) || !isObject(b)) return Object.is(a, b);
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && isSame(a[key], b[key]));
}

function bring(document: ReturnType<typeof parseDocument>, path: Path, old: unknown, now: Config): void {
  const before = isObject(old) ? old : {};
  for (const key of Object.keys(before)) if (!(key in now)) document.deleteIn([...path, key]);
  for (const [key, value] of Object.entries(now)) {
    if (JSON.stringify(before[key]) === JSON.stringify(value)) continue;
    const own = [...path, key];
    const node = document.getIn(own, true);
    if (isObject(value) && isMap(node)) bring(document, own, before[key], value);
    else if (isScalar(node) && (typeof value !== "object" || value === null)) node.value = value;
    else document.setIn(own, document.createNode(value));
  }
}
