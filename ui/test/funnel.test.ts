import { expect, test } from "vitest";
import type { JobExplanation } from "../src/api/types";
import { barOf, CHECK_NAMES, CHECK_ORDER, cheapestOf, funnels } from "../src/logic/funnel";
import { readFileSync } from "node:fs";

const EXPLANATION = {
  instances: [
    { name: "a-0", fleet: "a", available: false, reasons: ["is busy"] },
    { name: "a-1", fleet: "a", available: false, reasons: ["has 2 CPUs, wanted 4", "has no GPU"] },
    { name: "a-2", fleet: "a", available: false, reasons: ["is busy"] },
    { name: "b-0", fleet: "b", available: true, reasons: [] },
  ],
  backends: [
    { backend: "aws", total: 100, fit: 0, cheapest: null, refused: [{ check: "gpu", offers: 90 }, { check: "price", offers: 10 }] },
    { backend: "runpod", total: 7, fit: 3, cheapest: 0.4, refused: [{ check: "gpu", offers: 4 }] },
    { backend: "gcp", total: 5, fit: 3, cheapest: 0.3, refused: [{ check: "availability", offers: 2 }] },
  ],
} as unknown as JobExplanation;

test("after each check fewer are left, down to those that fit", () => {
  const all = funnels(EXPLANATION);
  expect(all.map((each) => [each.name, each.total, each.steps.map((step) => [step.lost, step.left]), each.fit])).toEqual([
    ["Fleet b", 1, [], 1],
    ["Fleet a", 3, [[2, 1], [1, 0]], 0],
    ["runpod", 7, [[4, 3]], 3],
    ["gcp", 5, [[2, 3]], 3],
    ["aws", 100, [[90, 10], [10, 0]], 0],
  ]);
  expect(all[1]?.steps[0]?.why).toBe("is busy");
  for (const each of all) expect(each.steps.at(-1)?.left ?? each.total, each.name).toBe(each.fit);
});

test("the cheapest of all is named", () => {
  expect(cheapestOf(funnels(EXPLANATION))).toEqual({ name: "gcp", price: 0.3 });
  expect(cheapestOf(funnels({ ...EXPLANATION, backends: [] }))).toBeNull();
});

test("few of many are still seen", () => {
  expect([barOf(0, 10), barOf(10, 10), barOf(1, 1000), barOf(0, 0)]).toEqual([0, 100, 2, 0]);
});

test("each check of the API has its words, in its order", () => {
  const document = JSON.parse(readFileSync(new URL("../../docs/schemas/openapi.json", import.meta.url), "utf8")) as { components: { schemas: Record<string, { properties: Record<string, { enum?: string[] }> }> } };
  const checks = document.components.schemas["RefusedOffers"]?.properties["check"]?.enum;
  expect(CHECK_ORDER).toEqual(checks);
  expect(Object.keys(CHECK_NAMES)).toEqual(checks);
});
