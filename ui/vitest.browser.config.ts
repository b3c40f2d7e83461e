import { defineConfig } from "vitest/config";

/** Tests in a browser, against the built server. One after another: they share it. */
export default defineConfig({
  test: {
    include: ["browser/**/*.test.ts"],
    environment: "node",
    testTimeout: 60_000,
    hookTimeout: 60_000,
    fileParallelism: false,
    sequence: { concurrent: false },
    bail: 0,
  },
});
