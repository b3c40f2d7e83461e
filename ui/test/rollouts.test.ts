import { expect, test } from "vitest";
import { ApiError, ServerLost } from "../src/api/errors";
import { nullWhereUnknown } from "../src/api/queries";
import type { Rollout, RolloutDeployment, Run } from "../src/api/types";
import { consequence, isSplit, isUnderWay, isWorthTelling, mayAsk, mayHaveRollout, nextOf, originOf, rowsOf, rulesOf, seconds, secondsOf, stepsOf, strategyOf, updateText } from "../src/logic/rollouts";

const NOW = Date.parse("2026-03-01T12:00:00Z");
const later = (s: number) => new Date(NOW + s * 1000).toISOString();

function run(rollout: object | null, more: object = {}): Run {
  return { status: "running", deployment_num: 2, run_spec: { run_name: "web", configuration: { type: "service", rollout } }, ...more } as unknown as Run;
}

function deployment(num: number, more: Partial<RolloutDeployment> = {}): RolloutDeployment {
  return { deployment_num: num, replicas: 1, ready: 1, share_percent: null, answers: null, ...more };
}

function answers(requests: number, failed: number, p95_seconds: number | null) {
  return { requests, failed, error_percent: requests === 0 ? 0 : (failed / requests) * 100, p95_seconds, is_partial: false };
}

function state(phase: Rollout["phase"], more: Partial<Rollout> = {}): Rollout {
  return { run_name: "web", strategy: "canary", phase, since: later(-60), until: null, asked: null, reason: null, obstacle: null, deployments: [deployment(2), deployment(1, { replicas: 3, ready: 3 })], ...more };
}

const BOUNDED = { strategy: "canary", share: "2.5%", duration: 600, max_error_rate: "5%", max_latency: "500ms", min_requests: 30 };
const bounded = rulesOf(run(BOUNDED));
const canary = rulesOf(run({ strategy: "canary" }));
const green = rulesOf(run({ strategy: "blue_green" }));
const manual = rulesOf(run({ strategy: "blue_green", switch: "manual", keep: 90, header: { name: "x-green", value: "1" } }));

test("only services that run are asked for their roll-out", () => {
  expect(mayHaveRollout(run(null))).toBe(true);
  for (const status of ["terminating", "done", "failed", "terminated"]) expect(mayHaveRollout(run(null, { status })), status).toBe(false);
  const task = { run_spec: { run_name: "web", configuration: { type: "task" } } };
  expect(mayHaveRollout(run(null, task))).toBe(false);
});

test("what a configuration does not say is as the configuration language has it", () => {
  expect(canary).toEqual({ share: "10%", watched: 600, kept: 600, isManual: false, header: null, bounds: { errorPercent: null, latency: null, requests: 20 } });
  expect(rulesOf(run(null))).toEqual(canary);
  expect(bounded).toMatchObject({ share: "2.5%", bounds: { errorPercent: 5, latency: 0.5, requests: 30 } });
  expect(manual).toMatchObject({ isManual: true, kept: 90, header: "x-green: 1" });
});

test("latencies are read and written", () => {
  expect(["500ms", "2s", "1m", "0ms", "", "5", "s", "1h"].map(secondsOf)).toEqual([0.5, 2, 60, 0, null, null, null, null]);
  expect([0.0004, 0.25, 0.9994, 1, 2.5, 61.239].map(seconds)).toEqual(["0 ms", "250 ms", "999 ms", "1 s", "2.5 s", "61.24 s"]);
});

test("nothing is told where nothing is rolled out", () => {
  const single = { deployments: [deployment(2)] };
  expect(isWorthTelling(state(null, single))).toBe(false);
  expect(isWorthTelling(state(null, { deployments: [] }))).toBe(false);
  expect(isWorthTelling(state("rolled_back", single))).toBe(true);
  const rolling = state(null);
  expect([isWorthTelling(rolling), isUnderWay(rolling), strategyOf(rolling), stepsOf(rolling, canary)]).toEqual([true, false, "Rolling", []]);
  expect(mayAsk(rolling)).toEqual({ promote: false, abort: false });
  expect(nextOf(rolling, canary, 2, NOW)).toEqual({ text: "1 of 4 replicas is new; the others are replaced one after another.", at: null });
  expect(isSplit(rolling)).toBe(false);
});

test("what was rolled back has no strategy, no steps, and nothing to ask for", () => {
  const back = state("rolled_back", { reason: "2 of 20 answers failed" });
  expect([isUnderWay(back), strategyOf(back), stepsOf(back, canary), mayAsk(back)]).toEqual([false, null, [], { promote: false, abort: false }]);
  const roles = (...nums: number[]) => rowsOf({ ...back, deployments: nums.map((num) => deployment(num)) }, canary, 3).map((each) => each.role);
  expect([roles(3, 2), roles(3)]).toEqual([["as before", "rolled back"], []]);
});

test("a canary has three steps", () => {
  const steps = (phase: Rollout["phase"]) => stepsOf(state(phase), bounded).map((step) => step.state);
  expect(stepsOf(state("watching"), bounded).map((step) => step.name)).toEqual(["New replicas get ready", "They get 2.5% of the requests, and are watched for 10m", "The others are replaced one after another"]);
  expect([steps("preparing"), steps("watching"), steps("following")]).toEqual([
    ["now", "later", "later"],
    ["done", "now", "later"],
    ["done", "done", "now"],
  ]);
  expect(strategyOf(state("watching"))).toBe("Canary");
});

test("blue/green waits to be promoted only where the switch is made by hand", () => {
  const steps = (phase: Rollout["phase"], rules = green) => stepsOf(state(phase, { strategy: "blue_green" }), rules).map((step) => `${step.name}: ${step.state}`);
  expect(steps("kept")).toEqual(["New replicas get ready: done", "They get all requests, and the old ones are kept for 10m: now"]);
  expect(steps("preparing", manual)).toEqual(["New replicas get ready: now", "They wait to be promoted: later", "They get all requests, and the old ones are kept for 1m 30s: later"]);
  // The configuration has become `auto` meanwhile.
  expect(steps("ready")).toEqual(["New replicas get ready: done", "They wait to be promoted: now", "They get all requests, and the old ones are kept for 10m: later"]);
  expect(strategyOf(state("kept", { strategy: "blue_green" }))).toBe("Blue/green");
});

test("what is done or asked for already cannot be asked for", () => {
  const may = (phase: Rollout["phase"], asked: Rollout["asked"] = null) => mayAsk(state(phase, { asked }));
  for (const phase of ["preparing", "watching", "ready"] as const) expect(may(phase), phase).toEqual({ promote: true, abort: true });
  for (const phase of ["kept", "following"] as const) expect(may(phase), phase).toEqual({ promote: false, abort: true });
  expect(may("watching", "promote")).toEqual({ promote: false, abort: true });
  expect(may("watching", "abort")).toEqual({ promote: true, abort: false });
});

test("the next step has a time while it is one of time", () => {
  const next = (phase: Rollout["phase"], more: Partial<Rollout>, rules = bounded) => nextOf(state(phase, more), rules, 2, NOW);
  expect(next("watching", { until: later(90) })).toEqual({ text: "The others follow, if the new ones stay within their bounds.", at: later(90) });
  expect(next("watching", { until: later(90) }, canary)).toEqual({ text: "The others follow.", at: later(90) });
  expect(next("kept", { until: later(1), strategy: "blue_green" }, green)).toEqual({ text: "The old replicas are stopped.", at: later(1) });
  expect(next("kept", { until: later(-1), strategy: "blue_green" }, green)).toEqual({ text: "The old replicas are stopped once all new ones are ready.", at: null });
  for (const [phase, more, rules] of [
    ["preparing", {}, canary],
    ["preparing", { strategy: "blue_green" }, green],
    ["preparing", { strategy: "blue_green" }, manual],
    ["ready", { strategy: "blue_green" }, manual],
    ["following", {}, canary],
    ["watching", { asked: "promote", until: later(90) }, canary],
    ["watching", { asked: "abort", until: later(90) }, canary],
  ] as const) {
    expect(next(phase, more, rules).at, `${phase} ${JSON.stringify(more)}`).toBeNull();
  }
  const texts = [next("preparing", { strategy: "blue_green" }, green), next("preparing", { strategy: "blue_green" }, manual), next("ready", { strategy: "blue_green" }, manual)].map((each) => each.text);
  expect(texts).toEqual(["All requests are switched once all new replicas are ready.", "It can be switched to once all new replicas are ready.", "All requests are switched when it is promoted."]);
});

test("a canary whose time is over says what holds it up", () => {
  const held = (own: Partial<RolloutDeployment>, rules = bounded) => nextOf(state("watching", { until: later(-5), deployments: [deployment(2, own), deployment(1)] }), rules, 2, NOW).text;
  expect(held({ ready: 0 })).toBe("The others follow once all new ones are ready.");
  expect(held({})).toBe("The others follow once it is known what the new ones have answered.");
  expect(held({ answers: answers(29, 0, 0.1) })).toBe("The others follow once the new ones have answered 1 more request.");
  expect(held({ answers: answers(30, 0, 0.1) })).toBe("The others follow now.");
  expect(held({}, canary)).toBe("The others follow now.");
  expect(nextOf(state("watching", { until: later(-5), deployments: [deployment(1)] }), canary, 2, NOW).text).toBe("The others follow once all new ones are ready.");
});

test("figures of the new deployment stand beside its bounds", () => {
  const rows = (own: ReturnType<typeof answers> | null, rules = bounded, phase: Rollout["phase"] = "watching") =>
    rowsOf(state(phase, { deployments: [deployment(2, { share_percent: 2.5, answers: own }), deployment(1, { replicas: 3, ready: 2, share_percent: 97.5, answers: answers(1200, 120, 3) })] }), rules, 2);
  const figure = (text: string, note = "", isBeyond = false) => ({ text, spoken: null, note, isBeyond });
  expect(rows(answers(40, 1, 0.25))).toEqual([
    { num: 2, role: "new", replicas: "1 of 1 ready", share: "2.5%", requests: figure("40"), failed: figure("1 (2.5%)", "at most 5%"), latency: figure("250 ms", "at most 500 ms") },
    { num: 1, role: "before", replicas: "2 of 3 ready", share: "97.5%", requests: figure("1,200"), failed: figure("120 (10.0%)"), latency: figure("3 s") },
  ]);
  expect(rows(answers(40, 3, 0.75))[0]).toMatchObject({ failed: figure("3 (7.5%)", "more than 5%", true), latency: figure("750 ms", "at most 500 ms") });
  expect(rows(answers(40, 2, 0.5))[0], "as much as is allowed").toMatchObject({ failed: { isBeyond: false } });
  expect(rows(answers(29, 29, 9))[0], "too few to be judged").toMatchObject({ requests: figure("29", "judged from 30 on"), failed: figure("29 (100.0%)", "at most 5%"), latency: figure("9 s", "at most 500 ms") });
  expect(rows(answers(0, 0, null))[0]).toMatchObject({ failed: figure("0 (0.0%)", "at most 5%"), latency: figure("") });
  expect(rows(answers(10, 9, 9), canary)[0], "without bounds").toMatchObject({ requests: figure("10"), failed: figure("9 (90.0%)"), latency: figure("9 s") });
  expect(rows(answers(40, 40, 9), bounded, "kept")[0], "not judged any more").toMatchObject({ failed: figure("40 (100.0%)") });
  expect(rows(null)[0], "unknown").toMatchObject({ requests: figure("not known"), failed: figure("not known"), latency: figure("not known") });
  expect(rowsOf(state("following"), bounded, 2)[0]).toMatchObject({ share: "", requests: figure("") });
});

test("a latency stands beside its bound, and is judged by the server alone", () => {
  const latency = (p95: number) => rowsOf(state("watching", { deployments: [deployment(2, { share_percent: 2.5, answers: answers(4000, 0, p95) })] }), bounded, 2)[0]?.latency;
  for (const p95 of [0.1, 0.5, 0.501, 290]) expect(latency(p95), `${p95}`).toMatchObject({ text: seconds(p95), note: "at most 500 ms", isBeyond: false });
});

test("partial figures are marked, for eyes and ears, and what marks them is explained", () => {
  const partly = { ...answers(1240, 31, 0.25), is_partial: true };
  const split = (own: ReturnType<typeof answers>) => state("watching", { deployments: [deployment(2, { share_percent: 10, answers: own }), deployment(1, { share_percent: 90, answers: answers(400, 0, 0.1) })] });
  const [own, other] = rowsOf(split(partly), bounded, 2);
  expect(own).toMatchObject({
    requests: { text: "1,240+", spoken: "1,240 or more" },
    failed: { text: "31+ (2.5%)", spoken: "31 or more (2.5%)", note: "at most 5%", isBeyond: false },
    latency: { text: "250 ms", spoken: null },
  });
  expect(other).toMatchObject({ requests: { text: "400", spoken: null }, failed: { text: "0 (0.0%)", spoken: null } });
  expect(rowsOf(split({ ...partly, requests: 10, failed: 9 }), bounded, 2)[0], "too few so far").toMatchObject({ requests: { text: "10+", note: "judged from 30 on" } });
  expect(rowsOf(split({ ...partly, error_percent: 5.1 }), bounded, 2)[0], "enough to go back").toMatchObject({ failed: { note: "more than 5%", isBeyond: true } });
  expect(originOf(split(partly))).toMatch(/^Counted since .*\. Numbers with \+ are partial, so there may be more: a gateway or another server has not said/);
  expect(originOf(split(answers(40, 1, 0.25)))).toBe("Counted since the roll-out began, or since whoever counts was started.");
  expect(originOf(state("following"))).toBeNull();
});

test("what only some have counted is not taken for the whole", () => {
  const held = (requests: number, is_partial: boolean, rules = bounded) => nextOf(state("watching", { until: later(-5), deployments: [deployment(2, { answers: { ...answers(requests, 0, 0.1), is_partial } }), deployment(1)] }), rules, 2, NOW).text;
  for (const requests of [0, 29, 30, 4000]) expect(held(requests, true), `${requests}`).toBe("The others follow once it is known what the new ones have answered.");
  expect([held(29, false), held(30, false)]).toEqual(["The others follow once the new ones have answered 1 more request.", "The others follow now."]);
  expect(held(30, true, canary), "only time counts").toBe("The others follow now.");
});

test("what is in the way is told in place of what is next", () => {
  const obstacle = "its gateway cannot split requests: `dstack rollout web --abort` goes back";
  const next = (phase: Rollout["phase"], more: Partial<Rollout> = {}) => nextOf(state(phase, { obstacle, ...more }), bounded, 2, NOW);
  const told = { text: `It cannot go on: ${obstacle}.`, at: null };
  for (const phase of ["preparing", "watching", "ready", "kept"] as const) expect(next(phase, { until: later(90) }), phase).toEqual(told);
  const green = { strategy: "blue_green" } as const;
  expect(next("preparing", { ...green, asked: "promote" }), "still in the way").toEqual(told);
  expect(next("preparing", { ...green, asked: "abort" }).text).toBe("It is about to be rolled back.");
  expect(next("preparing", { asked: "promote" }).text, "goes on unwatched").toBe("The others follow as soon as they can.");
});

test("an older server says neither whether figures are partial nor what is in the way", () => {
  const { is_partial: _, ...figures } = answers(30, 0, 0.1);
  const { obstacle: __, ...older } = state("watching", { until: later(-5), deployments: [deployment(2, { share_percent: 10, answers: figures as RolloutDeployment["answers"] }), deployment(1, { share_percent: 90 })] });
  const told = older as Rollout;
  expect(nextOf(told, bounded, 2, NOW)).toEqual({ text: "The others follow now.", at: null });
  expect(rowsOf(told, bounded, 2)[0]).toMatchObject({ requests: { text: "30", spoken: null }, failed: { text: "0 (0.0%)", spoken: null } });
  expect(originOf(told)).not.toContain("partial");
});

test("an even older server, which knows nothing of roll-outs, has none", () => {
  const refused = (status: number, code: string | null = null) => new ApiError(status, [{ text: "Not found", place: [] }], code);
  expect(nullWhereUnknown(refused(404))).toBeNull();
  for (const error of [refused(400, "resource_not_exists"), refused(403), refused(500), new ServerLost("gone")]) expect(() => nullWhereUnknown(error)).toThrow(error);
});

test("what is about to happen is said before it does", () => {
  const said = (action: "promote" | "abort", phase: Rollout["phase"], strategy: Rollout["strategy"], rules = manual) => consequence(action, state(phase, { strategy }), rules);
  expect(said("promote", "watching", "canary")).toMatch(/^The other replicas are replaced one after another from now on/);
  expect(said("promote", "preparing", "blue_green")).toBe("All requests go to the new replicas, as soon as all of them are ready. The old ones are kept for 1m 30s.");
  expect(said("promote", "ready", "blue_green")).toContain(", at once.");
  const aborts = (["watching", "kept", "following"] as const).map((phase) => said("abort", phase, "blue_green"));
  expect(new Set(aborts).size).toBe(3);
});

test("a plan says how an update is made", () => {
  const text = (rollout: object | null) => updateText(run(rollout).run_spec);
  expect(text(null)).toBe("What differs is changed, replica by replica.");
  expect(text({ strategy: "rolling" })).toBe(text(null));
  expect(text({ strategy: "canary" })).toContain("watched");
  expect(text({ strategy: "blue_green" })).toContain("all requests at once");
});
