/** A configuration as it is being written: parsed, and problems of it found in the text. */

import { isMap, isNode, parseDocument } from "yaml";
import type { Problem } from "../api/client";

export interface Draft {
  /** What the text says; unset while it is no YAML. */
  configuration: Record<string, unknown> | null;
  type: string | undefined;
  problems: { text: string; from: number; to: number }[];
}

/** Large texts of aliases of aliases are refused. */
const MAX_ALIASES = 100;

export function readDraft(text: string): Draft {
  const document = parseDocument(text, { prettyErrors: false });
  const problems = document.errors.map((error) => ({ text: error.message, from: error.pos[0], to: error.pos[1] }));
  if (problems.length > 0) return { configuration: null, type: undefined, problems };
  if (!isMap(document.contents)) return { configuration: null, type: undefined, problems: [{ text: "A configuration has fields, such as “type: task”.", from: 0, to: text.length }] };
  try {
    const configuration = document.toJS({ maxAliasCount: MAX_ALIASES }) as Record<string, unknown>;
    const type = typeof configuration["type"] === "string" ? configuration["type"] : undefined;
    return { configuration, type, problems: [] };
  } catch (error) {
    return { configuration: null, type: undefined, problems: [{ text: String(error), from: 0, to: text.length }] };
  }
}

/** Where in the text the server's problems are. The place may name the kind of configuration on the way, which the text does not. */
export function located(text: string, problems: Problem[]): { text: string; from: number; to: number }[] {
  const document = parseDocument(text, { prettyErrors: false });
  return problems.map((problem) => {
    const at = problem.place.indexOf("configuration");
    const path = at < 0 ? problem.place : problem.place.slice(at + 1);
    const paths = [path, path.slice(1)];
    for (const full of paths) {
      // The nearest thing above that is there.
      for (let length = full.length; length > 0; length -= 1) {
        const node: unknown = document.getIn(full.slice(0, length), true);
        if (isNode(node) && node.range) return { text: problem.text, from: node.range[0], to: node.range[1] };
      }
    }
    return { text: problem.text, from: 0, to: Math.max(0, text.indexOf("\n")) };
  });
}
