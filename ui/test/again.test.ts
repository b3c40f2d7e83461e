import { expect, test } from "vitest";
import { stringify } from "yaml";
import { configurationOf, leftOut } from "../src/logic/again";
import { readDraft } from "../src/logic/draft";

test("a configuration is as short as somebody would write it", () => {
  const configuration = {
    nodes: null,
    commands: ["echo"],
    ports: [{ local_port: null, container_port: 8000 }],
    type: "task",
    name: null,
    home_dir: "/root",
    privileged: false,
    env: {},
    resources: { cpu: { arch: null, count: { min: 1, max: null } }, memory: { min: 2, max: 4 }, gpu: { name: ["A100"], count: { min: 1, max: 1 } }, disk: { size: { min: null, max: 9 } } },
    max_price: 0,
  };
  expect(configurationOf("train", configuration)).toEqual({
    type: "task",
    name: "train",
    commands: ["echo"],
    ports: [{ container_port: 8000 }],
    resources: { cpu: { count: "1.." }, memory: "2..4", gpu: { name: ["A100"], count: 1 }, disk: { size: "..9" } },
    max_price: 0,
  });
});

test("how a service is updated, balanced and scaled is taken along", () => {
  const service = {
    type: "service",
    port: 8000,
    replicas: { min: 1, max: 8 },
    scaling: { metric: "rps", target: 10, signals: [{ metric: "time_to_first_token", target: 0.5 }], metrics_path: null },
    balancing: "prefix",
    rollout: { strategy: "canary", replicas: 1, share: "10%", duration: 600, max_error_rate: "5%", max_latency: "500ms", header: { name: "x-canary", value: "1" } },
  };
  const written = stringify(configurationOf("llm", service));
  expect(readDraft(written).configuration).toEqual({
    type: "service",
    name: "llm",
    port: 8000,
    replicas: "1..8",
    scaling: { metric: "rps", target: 10, signals: [{ metric: "time_to_first_token", target: 0.5 }] },
    balancing: "prefix",
    rollout: service.rollout,
  });
});

test("what a configuration has no place for is said to be left out", () => {
  const plain = { profile: { name: "default", tags: null, regions: [] }, repo_data: { repo_type: "virtual" as const }, repo_code_hash: null, file_archives: [] } as never;
  expect(leftOut(plain)).toEqual([]);
  expect(leftOut({ ...(plain as object), profile: { name: "default", max_price: 2 }, repo_code_hash: "ab", file_archives: [{ id: "1", path: "/a" }] } as never)).toEqual(["its profile", "its repository", "its files"]);
});
