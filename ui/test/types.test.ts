import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";

test("the types are those of the OpenAPI document", { timeout: 60_000 }, () => {
  const folder = new URL("..", import.meta.url);
  const check = () => execFileSync("npm", ["run", "--silent", "types", "--", "--check"], { cwd: folder, stdio: "pipe" });
  expect(check, "make them again with: cargo xtask gen").not.toThrow();
});
