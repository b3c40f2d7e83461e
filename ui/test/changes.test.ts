import { expect, test } from "vitest";
import { changesIn, concerns, isTold, keysOf, keysOfAll } from "../src/logic/changes";

const RUN = "8c2f9a4e-0000-4000-8000-000000000001";
const OTHER = "8c2f9a4e-0000-4000-8000-000000000002";
const named = (kind: string, id: string | null = null) => keysOf({ kind, id }).map(({ key, of }) => [...key, ...(of ? [`of ${of}`] : [])].join(" "));

/** Keys as the page has them, each with what was read. */
const READ: [string, readonly unknown[], unknown][] = [
  ["runs", ["runs", { active: true }, "head"], []],
  ["costs", ["runs", "costs", {}, "head"], []],
  ["active costs", ["runs", "costs", "active", {}], { runs: [] }],
  ["any run", ["runs", "any"], true],
  ["run", ["run", "main", RUN], { id: RUN }],
  ["run by name", ["run", "main", "walk"], { id: RUN }],
  ["another run", ["run", "main", OTHER], { id: OTHER }],
  ["a run on its way", ["run", "main", "other"], undefined],
  ["phases", ["phases", RUN], []],
  ["other phases", ["phases", OTHER], []],
  ["roll-out", ["rollout", "main", RUN], { run_name: "walk" }],
  ["another roll-out", ["rollout", "main", OTHER], { run_name: "run" }],
  ["fleets", ["fleets", {}, "head"], []],
  ["fleet", ["fleet", "main", "f"], { id: "f" }],
  ["no fleets", ["projects", "without fleets"], []],
  ["instances", ["instances", {}, "head"], []],
  ["instance", ["instance", "main", "i"], { id: "i" }],
  ["projects", ["projects"], []],
  ["project", ["project", "main"], { project_id: "p" }],
  ["another project", ["project", "side"], { project_id: "q" }],
  ["me", ["me"], { id: "u" }],
  ["events", ["events", { within_runs: [RUN] }, "head"], []],
  ["plan", ["plan", "main", "text"], {}],
  ["edited", ["edited user", "mia"], { id: "u" }],
];
function concerned(kind: string, id: string | null): string[] {
  const keys = keysOf({ kind, id });
  return READ.filter(([, key, data]) => keys.some((each) => concerns(each, key, data))).map(([name]) => name);
}

test("a change of a run concerns lists, costs, and that run alone", () => {
  expect(concerned("run", RUN)).toEqual(["runs", "costs", "active costs", "any run", "run", "run by name", "a run on its way", "phases", "roll-out"]);
  expect(concerned("run", null)).toEqual(["runs", "costs", "active costs", "any run", "run", "run by name", "another run", "a run on its way", "phases", "other phases", "roll-out", "another roll-out"]);
});

test("each kind concerns what shows it", () => {
  expect(concerned("instance", "i")).toEqual(["fleets", "fleet", "instances", "instance"]);
  expect(concerned("instance", "another")).toEqual(["fleets", "fleet", "instances"]);
  expect(concerned("fleet", "f")).toEqual(["fleets", "fleet", "no fleets"]);
  expect(concerned("project", "p")).toEqual(["no fleets", "projects", "project"]);
  expect(concerned("user", "u")).toEqual(["project", "another project", "me"]);
  expect(concerned("user", "another")).not.toContain("me");
  expect(concerned("event", null)).toEqual(["events"]);
  expect(named("volume")).toEqual(["volumes"]);
  expect(named("gateway")).toEqual(["gateways"]);
  expect(named("run", RUN)).toEqual(["runs", `run of ${RUN}`, `phases of ${RUN}`, `rollout of ${RUN}`]);
});

test("kinds that are not known, and output, concern nothing that was read", () => {
  for (const kind of ["logs", "moon", "constructor", ""]) expect(keysOf({ kind, id: RUN })).toEqual([]);
});

test("of lists their first page is read again, not all of them", () => {
  const [runs] = keysOf({ kind: "run", id: RUN });
  if (!runs) throw new Error("runs concern nothing");
  expect([concerns(runs, ["runs", {}, "head"], []), concerns(runs, ["runs", {}, "pages"], [])]).toEqual([true, false]);
});

test("what is told of need not be asked for", () => {
  expect(READ.filter(([, key]) => !isTold(key)).map(([name]) => name)).toEqual(["plan", "edited"]);
  expect(isTold(["runs", {}, "pages"])).toBe(false);
});

test("frames of any shape are read", () => {
  expect(changesIn('{"changes":[{"kind":"run","id":"a","project_id":"p"},{"kind":"event"},{"kind":"user","id":null}],"more":1}')).toEqual([
    { kind: "run", id: "a" },
    { kind: "event", id: null },
    { kind: "user", id: null },
  ]);
  for (const data of ["", "{", "null", "[]", "{}", '{"changes":{}}', '{"changes":[1,null,{},{"kind":2}]}']) expect(changesIn(data), data).toEqual([]);
});

test("the same is concerned once", () => {
  const change = { kind: "run", id: RUN };
  expect(keysOfAll([change, change, { kind: "run", id: OTHER }])).toHaveLength(7);
});
