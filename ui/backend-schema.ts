/** What the API's document says of configurations of backends, as a module: the whole document would be a megabyte of the page. */

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Plugin } from "vite";

const NAME = "virtual:backend-schema";
const DOCUMENT = fileURLToPath(new URL("../docs/schemas/openapi.json", import.meta.url));
/** What `backends/create` takes. */
const ROOT = "BackendConfig-Input";

/** The schemas that this one is made of, itself among them, by name. */
function excerpt(all: Record<string, unknown>, name: string, found: Record<string, unknown> = {}): Record<string, unknown> {
  if (name in found) return found;
  found[name] = all[name];
  for (const [, next] of JSON.stringify(all[name]).matchAll(/"#\/components\/schemas\/([^"]+)"/g)) excerpt(all, next ?? "", found);
  return found;
}

export function backendSchema(): Plugin {
  return {
    name: "backend-schema",
    resolveId: (asked) => (asked === NAME ? `\0${NAME}` : undefined),
    load(asked) {
      if (asked !== `\0${NAME}`) return undefined;
      this.addWatchFile(DOCUMENT);
      const { components } = JSON.parse(readFileSync(DOCUMENT, "utf8")) as { components: { schemas: Record<string, unknown> } };
      return `export default ${JSON.stringify({ root: ROOT, schemas: excerpt(components.schemas, ROOT) })}`;
    },
  };
}
