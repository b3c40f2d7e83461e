import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";
import { backendSchema } from "./backend-schema";

/** Writes `file.br` and `file.gz` beside each file of the build, where that makes it smaller. */
function compressed(folder: string): Plugin {
  const text = /\.(js|css|svg|json)$/;
  return {
    name: "compressed",
    apply: "build",
    closeBundle() {
      for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile() || !text.test(entry.name)) continue;
        const path = join(entry.parentPath ?? entry.path, entry.name);
        const plain = readFileSync(path);
        const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: plain.length };
        for (const [ending, packed] of [
          ["br", brotliCompressSync(plain, { params })],
          ["gz", gzipSync(plain, { level: 9 })],
        ] as const) {
          if (packed.length < plain.length) writeFileSync(`${path}.${ending}`, packed);
        }
      }
    },
  };
}

export default defineConfig({
  // Every address is relative, so that the page works below any path.
  base: "./",
  plugins: [react(), backendSchema(), compressed("dist/app")],
  build: {
    outDir: "dist/app",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    manifest: "manifest.json",
  },
  server: { proxy: { "/api": process.env["DSTACK_SERVER_URL"] ?? "http://127.0.0.1:3000" } },
});
