/** See `backend-schema.ts` beside the configuration of Vite. */
declare module "virtual:backend-schema" {
  import type { Schema } from "../logic/fields";
  const document: { root: string; schemas: Record<string, Schema> };
  export default document;
}
