import { defineConfig } from "vitest/config";
import { backendSchema } from "./backend-schema";

export default defineConfig({ plugins: [backendSchema()], test: { include: ["test/**/*.test.ts"], environment: "node" } });
