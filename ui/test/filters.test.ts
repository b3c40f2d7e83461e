import { expect, test } from "vitest";
import { fromSearch, safePath, toSearch } from "../src/logic/filters";

test("filters survive their way through the address", () => {
  for (const filters of [{}, { project: "main" }, { project: "a", user: "ünï", active: false }, { fleet: "id", active: true }]) {
    expect(fromSearch(toSearch(filters))).toEqual(filters);
  }
});

test("addresses that people wrote are read, and nonsense is left out", () => {
  expect(fromSearch({ only_active: "true", project_name: 42, username: "", fleet_id: { a: 1 } })).toEqual({ active: true, project: "42" });
  expect(fromSearch({ only_active: "maybe", project_name: ["a"] })).toEqual({});
});

test("after signing in one stays on this page", () => {
  expect(safePath("/projects/p/runs/r?x=1")).toBe("/projects/p/runs/r?x=1");
  for (const path of ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "", undefined, 5, "/logout", "/auth/token"]) {
    expect(safePath(path), String(path)).toBe("/runs");
  }
});
