import { expect, test } from "vitest";
import type { Fleet } from "../src/api/types";
import { firstSteps, placeOf } from "../src/logic/first-steps";

const fleet = (configuration: object, statuses: string[] = []) => ({ name: "f", project_name: "p", spec: { configuration }, instances: statuses.map((status) => ({ status })) }) as unknown as Fleet;

test("this machine is known by its address", () => {
  expect(placeOf(fleet({ ssh_config: { hosts: ["127.0.0.1"] } }, ["idle"]))).toMatchObject({ isThisMachine: true, instances: 1, isElastic: false });
  expect(placeOf(fleet({ ssh_config: { hosts: [{ hostname: "localhost" }] } }))).toMatchObject({ isThisMachine: true });
  expect(placeOf(fleet({ ssh_config: { hosts: ["127.0.0.1", "10.0.0.2"] } }))).toMatchObject({ isThisMachine: false });
  expect(placeOf(fleet({ nodes: { min: 0, max: 2 } }))).toMatchObject({ isThisMachine: false, isElastic: true });
});

test("steps follow each other", () => {
  const empty = fleet({ ssh_config: { hosts: ["10.0.0.2"] } }, ["terminated"]);
  const elastic = fleet({ nodes: { min: 0, max: null } });
  expect(firstSteps([], false).states).toEqual(["next", "later", "later"]);
  // A fleet without machines is no place, and what was begun cannot run yet.
  expect(firstSteps([empty], true)).toEqual({ places: [], states: ["next", "later", "later"] });
  expect(firstSteps([fleet({ nodes: { min: 0, max: 0 } })], false).states[0]).toBe("next");
  expect(firstSteps([empty, elastic], false)).toMatchObject({ places: [{ isElastic: true }], states: ["done", "next", "later"] });
  expect(firstSteps([elastic], true).states).toEqual(["done", "done", "next"]);
});
