import { expect, test } from "vitest";
import type { Fleet } from "../src/api/types";
import { firstSteps, placeOf, projectsToAsk, projectToStart } from "../src/logic/first-steps";

const fleet = (configuration: object, statuses: string[] = []) => ({ name: "f", project_name: "p", spec: { configuration }, instances: statuses.map((status) => ({ status })) }) as unknown as Fleet;

test("this machine is known by its address", () => {
  expect(placeOf(fleet({ ssh_config: { hosts: ["127.0.0.1"] } }, ["idle"]))).toMatchObject({ isThisMachine: true, instances: 1, isElastic: false });
  expect(placeOf(fleet({ ssh_config: { hosts: [{ hostname: "localhost" }] } }))).toMatchObject({ isThisMachine: true });
  expect(placeOf(fleet({ ssh_config: { hosts: ["127.0.0.1", "10.0.0.2"] } }))).toMatchObject({ isThisMachine: false });
  expect(placeOf(fleet({ nodes: { min: 0, max: 2 } }))).toMatchObject({ isThisMachine: false, isElastic: true });
});

const inCloud = () => ["aws"];

test("steps follow each other", () => {
  const empty = fleet({ ssh_config: { hosts: ["10.0.0.2"] } }, ["terminated"]);
  const elastic = fleet({ nodes: { min: 0, max: null } });
  expect(firstSteps([], false, inCloud).states).toEqual(["next", "later", "later"]);
  // A fleet without machines is no place, and what was begun cannot run yet.
  expect(firstSteps([empty], true, inCloud)).toEqual({ places: [], states: ["next", "later", "later"] });
  expect(firstSteps([fleet({ nodes: { min: 0, max: 0 } })], false, inCloud).states[0]).toBe("next");
  expect(firstSteps([empty, elastic], false, inCloud)).toMatchObject({ places: [{ isElastic: true }], states: ["done", "next", "later"] });
  expect(firstSteps([elastic], true, inCloud).states).toEqual(["done", "done", "next"]);
});

test("a fleet in which no machine can be made is no place to run", () => {
  const elastic = fleet({ nodes: { min: 0, max: null } });
  expect(firstSteps([elastic], true, () => []).states).toEqual(["next", "later", "later"]);
  // Of a project that one may not look into nothing is known.
  expect(firstSteps([elastic], true, () => undefined).states[0]).toBe("next");
  expect(firstSteps([fleet({ nodes: { min: 0, max: null }, backends: ["gcp"] })], false, inCloud).states[0]).toBe("next");
  expect(firstSteps([fleet({ nodes: { min: 0, max: null }, backends: ["gcp", "aws"] })], false, inCloud).states[0]).toBe("done");
  expect(firstSteps([fleet({ nodes: { min: 0, max: null } }, ["idle"])], false, () => []).states[0]).toBe("done");
  expect(firstSteps([fleet({ ssh_config: { hosts: ["127.0.0.1"] } }, ["idle"])], false, () => []).states[0]).toBe("done");
  expect(projectsToAsk([elastic, elastic, fleet({ nodes: 1 }, ["idle"]), fleet({ ssh_config: { hosts: ["a"] } })])).toEqual(["p"]);
});

test("examples start in a project of one's own", () => {
  const place = (project: string) => ({ ...placeOf(fleet({})), project });
  expect(projectToStart([place("theirs"), place("other"), place("main")], ["other", "main"], "main")).toBe("main");
  expect(projectToStart([place("theirs"), place("other")], ["other", "main"], "main")).toBe("other");
  expect(projectToStart([place("theirs")], ["other", "main"], "main")).toBe("main");
});
