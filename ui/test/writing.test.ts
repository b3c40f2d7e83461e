import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { problemsOf } from "../src/api/client";
import { dstack, quoted } from "../src/logic/cli";
import { fields, pathAt, type Schema, typeOf, values } from "../src/logic/completion";
import { located, readDraft } from "../src/logic/draft";

const schema = JSON.parse(readFileSync(new URL("../../docs/schemas/configuration.schema.json", import.meta.url), "utf8")) as Schema;
const names = (path: string[], type: string) => fields(schema, path, type).map((option) => option.name);

test("fields follow from the kind of configuration and the place in it", () => {
  expect(names([], "task")).toEqual(expect.arrayContaining(["commands", "resources", "nodes", "type"]));
  expect(names([], "task")).not.toContain("replicas");
  expect(names([], "service")).toEqual(expect.arrayContaining(["replicas", "model", "port"]));
  expect(names(["resources"], "task")).toEqual(expect.arrayContaining(["gpu", "memory", "cpu"]));
  expect(names(["resources", "gpu"], "task")).toEqual(expect.arrayContaining(["vendor", "count"]));
  expect(names(["nowhere"], "task")).toEqual([]);
  expect(names(["rollout"], "service")).toEqual(expect.arrayContaining(["strategy", "share", "duration", "max_error_rate", "max_latency", "min_requests", "header", "switch", "keep"]));
  expect(names(["rollout", "header"], "service")).toEqual(["name", "value"]);
  expect(names(["scaling"], "service")).toEqual(expect.arrayContaining(["metric", "target", "signals", "metrics_path"]));
  expect(names(["scaling", "signals"], "service")).toEqual(["metric", "target"]);
});

test("values are those that the schema lists", () => {
  expect(values(schema, ["type"], undefined).map((option) => option.name)).toEqual(expect.arrayContaining(["task", "service", "fleet"]));
  expect(values(schema, ["spot_policy"], "task").map((option) => option.name)).toEqual(expect.arrayContaining(["spot", "on-demand", "auto"]));
  const ofService = (...path: string[]) => values(schema, path, "service").map((option) => option.name);
  expect(ofService("rollout", "strategy")).toEqual(["rolling", "canary", "blue_green"]);
  expect(ofService("rollout", "switch")).toEqual(["auto", "manual"]);
  expect(ofService("scaling", "signals", "metric")).toEqual(["concurrency", "queue_length", "time_to_first_token"]);
  expect(ofService("balancing")).toEqual(["least_requests", "prefix"]);
});

test("the place in the text is known by its indentation", () => {
  const text = ["type: task", "resources:", "  gpu:", "    name: H100", "", "  # more", "  "];
  expect(pathAt(text, 6, 2)).toEqual(["resources"]);
  expect(pathAt(text, 4, 4)).toEqual(["resources", "gpu"]);
  expect(pathAt(text, 6, 0)).toEqual([]);
  expect(pathAt(["probes:", "  - type: http", "    "], 2, 4)).toEqual(["probes"]);
  expect(typeOf(text.join("\n"))).toBe("task");
});

test("problems of the server are shown where they are", () => {
  const text = "type: task\nports:\n  - 8000\n  - x\n";
  const at = (place: (string | number)[]) => {
    const [found] = located(text, [{ text: "bad", place }]);
    return text.slice(found?.from, found?.to);
  };
  expect(at(["run_spec", "configuration", "task", "ports", 1])).toBe("x");
  expect(at(["run_spec", "configuration", "task", "nowhere"])).toBe("type: task");
  expect(at(["configuration", "ports", 0])).toBe("8000");
});

test("what is no YAML, and what would grow without end, is refused", () => {
  expect(readDraft("a: [").configuration).toBeNull();
  expect(readDraft("just text").problems).toHaveLength(1);
  expect(readDraft("type: task\nname: x").configuration).toEqual({ type: "task", name: "x" });
  const bomb = ["a: &a [x,x,x,x,x,x,x,x,x]", ...Array.from({ length: 9 }, (_, at) => `${String.fromCharCode(98 + at)}: &${String.fromCharCode(98 + at)} [${Array(9).fill(`*${String.fromCharCode(97 + at)}`).join()}]`)].join("\n");
  const draft = readDraft(bomb);
  expect(draft.configuration).toBeNull();
  expect(draft.problems).toHaveLength(1);
});

test("refusals are read in all shapes that the API has", () => {
  const texts = (body: unknown) => problemsOf(400, body).problems.map((problem) => problem.text);
  expect(problemsOf(422, { detail: [{ type: "missing", loc: ["body", "a", 0], msg: "Field required" }] }).problems).toEqual([{ text: "Field required", place: ["a", 0] }]);
  expect(problemsOf(400, { detail: [{ msg: "Resource exists", code: "resource_exists" }] }).code).toBe("resource_exists");
  expect(texts({ detail: { msg: "Invalid token", code: null } })).toEqual(["Invalid token"]);
  expect(texts({ msg: "Access denied: x", code: null })).toEqual(["Access denied: x"]);
  expect(texts({ detail: "Not Found" })).toEqual(["Not Found"]);
  expect(texts(null)).toEqual(["The server answered with status 400."]);
});

test("command lines are quoted for a shell", () => {
  expect(dstack(["stop", "a b; rm -rf $HOME"], "main")).toBe("dstack stop 'a b; rm -rf $HOME' --project main");
  expect(quoted("it's")).toBe(`'it'\\''s'`);
  expect(quoted("")).toBe("''");
});
