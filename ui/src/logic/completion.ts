/** What may stand at a place of a configuration, by our JSON Schema. */

export interface Schema {
  $ref?: string;
  $defs?: Record<string, Schema>;
  type?: string | string[];
  properties?: Record<string, Schema>;
  items?: Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  enum?: unknown[];
  const?: unknown;
  description?: string;
}

export interface Option {
  name: string;
  about: string;
}

/** The keys above a line of YAML, outermost first; items of lists have none of their own. */
export function pathAt(lines: string[], line: number, indent: number): string[] {
  const path: string[] = [];
  let inside = indent;
  for (let at = line - 1; at >= 0 && inside > 0; at -= 1) {
    const text = lines[at] ?? "";
    const match = /^(\s*(?:- \s*)?)([\w-]+):(?:\s|$)/.exec(text);
    if (!match || /^\s*#/.test(text)) continue;
    const own = (match[1] ?? "").length;
    if (own < inside) {
      path.unshift(match[2] ?? "");
      inside = /^\s*- /.test(text) ? text.search(/\S/) : own;
    }
  }
  return path;
}

/** The kind of configuration that the text is of. */
export function typeOf(text: string): string | undefined {
  return /^type:\s*["']?([\w-]+)/m.exec(text)?.[1];
}

function resolved(schema: Schema, root: Schema): Schema[] {
  if (schema.$ref) {
    const target = root.$defs?.[schema.$ref.split("/").at(-1) ?? ""];
    return target ? resolved(target, root) : [];
  }
  const choices = [...(schema.anyOf ?? []), ...(schema.oneOf ?? [])];
  return choices.length > 0 ? choices.flatMap((choice) => resolved(choice, root)) : [schema];
}

function ofType(schema: Schema, type: string | undefined): boolean {
  const own = schema.properties?.["type"];
  if (!own || type === undefined) return true;
  const allowed = own.const !== undefined ? [own.const] : own.enum;
  return allowed === undefined || allowed.includes(type);
}

function at(root: Schema, path: string[], type: string | undefined): Schema[] {
  let here = resolved(root, root).filter((schema) => ofType(schema, type));
  for (const key of path) {
    here = here.flatMap((schema) => {
      const next = schema.properties?.[key] ?? schema.items?.properties?.[key];
      return next ? resolved(next, root) : [];
    });
    here = here.flatMap((schema) => (schema.items ? [schema, ...resolved(schema.items, root)] : [schema]));
  }
  return here;
}

/** Names of the fields that may stand below this path. */
export function fields(root: Schema, path: string[], type: string | undefined): Option[] {
  const found = new Map<string, string>();
  for (const schema of at(root, path, type)) {
    for (const [name, property] of Object.entries(schema.properties ?? {})) found.set(name, property.description ?? found.get(name) ?? "");
  }
  return [...found].map(([name, about]) => ({ name, about }));
}

/** Values that a field may have, where there is a list of them. */
export function values(root: Schema, path: string[], type: string | undefined): Option[] {
  const found = at(root, path, path.length === 1 && path[0] === "type" ? undefined : type).flatMap((schema) => {
    if (schema.const !== undefined) return [schema.const];
    if (schema.type === "boolean") return [true, false];
    return schema.enum ?? [];
  });
  return [...new Set(found.filter((value) => value !== null).map(String))].map((name) => ({ name, about: "" }));
}
