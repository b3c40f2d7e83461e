/** What an editor starts from, as it stands in the address: a key, and never the text of a run, which may have passwords in it. */

export type Start =
  /** One of the page's own. */
  | { kind: "template"; name: string }
  /** One of the project's. */
  | { kind: "project's template"; name: string }
  /** The configuration of a run, which is read from the server. */
  | { kind: "run"; project: string; id: string }
  /** A text that somebody has put into a link. */
  | { kind: "text"; yaml: string };

type Search = Record<string, unknown>;

const RUN = /^([\w-]+)\/([0-9a-f]{8}-[0-9a-f-]{27})$/;

/** What an address asks for; the first of the page's templates where it asks for nothing that there is. */
export function startOf(search: Search, templates: string[]): Start {
  const { from, yaml, template, kind } = search;
  const [, project, id] = (typeof from === "string" && RUN.exec(from)) || [];
  if (project !== undefined && id !== undefined) return { kind: "run", project, id };
  if (typeof yaml === "string") return { kind: "text", yaml };
  // A name of digits is read as a number.
  if (["string", "number"].includes(typeof template)) return { kind: "project's template", name: String(template) };
  const name = templates.find((each) => each === kind) ?? templates[0] ?? "";
  return { kind: "template", name };
}

/** The address of a start. */
export function searchOf(start: Start): Search {
  switch (start.kind) {
    case "run":
      return { from: `${start.project}/${start.id}` };
    case "text":
      return { yaml: start.yaml };
    case "project's template":
      return { template: start.name };
    case "template":
      return { kind: start.name };
  }
}

/** What tells a start from all others. */
export function keyOf(start: Start): string {
  return JSON.stringify(searchOf(start));
}
