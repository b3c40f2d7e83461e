/** The roll-out of a service in words and rows: how far it is, what both deployments answer, and what may be asked of it. */

import type { Rollout, RolloutDeployment, Run } from "../api/types";
import { count } from "./format";
import { isFinished } from "./status";
import { duration } from "./time";

type Phase = NonNullable<Rollout["phase"]>;
export type Action = "promote" | "abort";

/** What the answers of new replicas must not go beyond; `null` where anything goes. */
interface Bounds {
  errorPercent: number | null;
  /** Seconds within which 95% of the answers begin. */
  latency: number | null;
  /** So many answers there must be first. */
  requests: number;
}

/** How a service is rolled out. */
export interface Rules {
  /** Of the requests, such as `10%`. */
  share: string;
  /** Seconds that new replicas are watched, and that old ones are kept. */
  watched: number;
  kept: number;
  /** Whether requests are switched to the new replicas only when that is asked for. */
  isManual: boolean;
  /** Requests with it go to the new replicas, such as `x-canary: 1`. */
  header: string | null;
  bounds: Bounds;
}

/** Whether the run may have a roll-out at all, so that it is worth asking. */
export function mayHaveRollout(run: Run): boolean {
  return run.run_spec.configuration.type === "service" && !isFinished(run.status) && run.status !== "terminating";
}

/** The rules of the present configuration, with the defaults of the configuration language. */
export function rulesOf(run: Run): Rules {
  const { configuration } = run.run_spec;
  const given = (configuration.type === "service" && configuration.rollout) || {};
  const { header, max_error_rate: errors, max_latency: latency } = given;
  return {
    share: given.share ?? "10%",
    watched: given.duration ?? 600,
    kept: given.keep ?? 600,
    isManual: given.switch === "manual",
    header: header ? `${header.name}: ${header.value}` : null,
    bounds: { errorPercent: errors ? Number.parseFloat(errors) : null, latency: latency ? secondsOf(latency) : null, requests: given.min_requests ?? 20 },
  };
}

const UNITS: Record<string, number> = { ms: 0.001, s: 1, m: 60 };

/** Seconds of `500ms`, `2s` or `1m`; `null` where it is none of them. */
export function secondsOf(text: string): number | null {
  const [, number = "", unit = ""] = /^(\d+)(ms|s|m)$/.exec(text) ?? [];
  const size = UNITS[unit];
  return size === undefined ? null : Number(number) * size;
}

function hasBounds({ errorPercent, latency }: Bounds): boolean {
  return errorPercent !== null || latency !== null;
}

/** Whether a new deployment stands beside another one, and goes on or back. */
export function isUnderWay({ phase }: Rollout): boolean {
  return phase !== null && phase !== "rolled_back";
}

/** Whether replicas are replaced one after another, without anything that decides about it. */
function isRolling({ phase, deployments }: Rollout): boolean {
  return phase === null && deployments.length > 1;
}

/** Whether there is anything to tell. */
export function isWorthTelling(state: Rollout): boolean {
  return state.phase !== null || isRolling(state);
}

/** How new replicas take the place of old ones; nothing where they do not any more. */
export function strategyOf(state: Rollout): string | null {
  if (isRolling(state)) return "Rolling";
  if (!isUnderWay(state)) return null;
  return { rolling: "Rolling", canary: "Canary", blue_green: "Blue/green" }[state.strategy];
}

/** What the server takes now: what is asked for already, or done, is not asked for once more. */
export function mayAsk(state: Rollout): Record<Action, boolean> {
  const mayGoOn = state.phase === "preparing" || state.phase === "watching" || state.phase === "ready";
  return { promote: mayGoOn && state.asked !== "promote", abort: isUnderWay(state) && state.asked !== "abort" };
}

export interface Step {
  name: string;
  state: "done" | "now" | "later";
}

/** The steps of a roll-out that is under way, in order. */
export function stepsOf(state: Rollout, rules: Rules): Step[] {
  const { phase } = state;
  if (phase === null || phase === "rolled_back") return [];
  const all = state.strategy === "blue_green" ? stepsOfGreen(phase, rules) : stepsOfCanary(rules);
  const present = all.findIndex((step) => step.phase === phase);
  return all.map(({ name }, at) => ({ name, state: at < present ? "done" : at === present ? "now" : "later" }));
}

function stepsOfCanary({ share, watched }: Rules): { phase: Phase; name: string }[] {
  return [
    { phase: "preparing", name: "New replicas get ready" },
    { phase: "watching", name: `They get ${share} of the requests, and are watched for ${duration(watched)}` },
    { phase: "following", name: "The others are replaced one after another" },
  ];
}

function stepsOfGreen(phase: Phase, { isManual, kept }: Rules): { phase: Phase; name: string }[] {
  const asked: { phase: Phase; name: string }[] = isManual || phase === "ready" ? [{ phase: "ready", name: "They wait to be promoted" }] : [];
  return [{ phase: "preparing", name: "New replicas get ready" }, ...asked, { phase: "kept", name: `They get all requests, and the old ones are kept for ${duration(kept)}` }];
}

/** What comes next. */
export interface Next {
  text: string;
  /** When it is due; `null` where that is no matter of time. */
  at: string | null;
}

/** What the roll-out of this new deployment waits for. */
export function nextOf(state: Rollout, rules: Rules, deployment: number, now: number): Next {
  const untimed = (text: string): Next => ({ text, at: null });
  const isDue = state.until === null || Date.parse(state.until) <= now;
  if (state.asked === "abort") return untimed("It is about to be rolled back.");
  // Nothing is in the way of going back, nor of a canary that goes on unwatched.
  if (state.asked === "promote" && state.strategy !== "blue_green") return untimed("The others follow as soon as they can.");
  if (state.obstacle) return untimed(`It cannot go on: ${state.obstacle}.`);
  if (state.asked === "promote") return untimed("All requests are switched as soon as all new replicas are ready.");
  switch (state.phase) {
    case "preparing":
      return untimed(state.strategy === "blue_green" ? (rules.isManual ? "It can be switched to once all new replicas are ready." : "All requests are switched once all new replicas are ready.") : "New replicas are watched once all of them are ready.");
    case "watching":
      if (isDue) return untimed(`The others follow ${heldUpBy(state, rules, deployment)}.`);
      return { text: hasBounds(rules.bounds) ? "The others follow, if the new ones stay within their bounds." : "The others follow.", at: state.until };
    case "ready":
      return untimed("All requests are switched when it is promoted.");
    case "kept":
      return isDue ? untimed("The old replicas are stopped once all new ones are ready.") : { text: "The old replicas are stopped.", at: state.until };
    default:
      return untimed(replaced(state, deployment));
  }
}

/** What a canary waits for whose time is over. */
function heldUpBy({ deployments }: Rollout, { bounds }: Rules, deployment: number): string {
  const own = deployments.find((each) => each.deployment_num === deployment);
  if (!own || own.ready < own.replicas) return "once all new ones are ready";
  if (!hasBounds(bounds)) return "now";
  // What some have counted does not say what the others have.
  if (!own.answers || own.answers.is_partial) return "once it is known what the new ones have answered";
  const lacking = bounds.requests - own.answers.requests;
  return lacking > 0 ? `once the new ones have answered ${count(lacking, "more request")}` : "now";
}

function replaced({ deployments }: Rollout, deployment: number): string {
  const all = deployments.reduce((sum, each) => sum + each.replicas, 0);
  const own = deployments.find((each) => each.deployment_num === deployment)?.replicas ?? 0;
  return `${own} of ${count(all, "replica")} ${own === 1 ? "is" : "are"} new; the others are replaced one after another.`;
}

/** A figure, and what it is measured by. */
export interface Figure {
  text: string;
  /** The same for those who hear it; `null` where the text says it. */
  spoken: string | null;
  note: string;
  isBeyond: boolean;
}

/** A deployment as a row of a table. */
export interface Row {
  num: number;
  /** What it is to the others. */
  role: "new" | "before" | "as before" | "rolled back";
  replicas: string;
  share: string;
  requests: Figure;
  failed: Figure;
  latency: Figure;
}

/** Whether requests are split between deployments, so that there is something to tell of each. */
export function isSplit({ deployments }: Rollout): boolean {
  return deployments.some((each) => each.share_percent !== null);
}

/** The deployments, of which this one is the last. One that goes on alone after another was rolled back needs no table. */
export function rowsOf(state: Rollout, rules: Rules, deployment: number): Row[] {
  const isBack = state.phase === "rolled_back";
  if (isBack && state.deployments.length < 2) return [];
  const isJudged = state.strategy === "canary" && (state.phase === "preparing" || state.phase === "watching");
  return state.deployments.map((each) => {
    const isLast = each.deployment_num === deployment;
    const role = isBack ? (isLast ? "as before" : "rolled back") : isLast ? "new" : "before";
    return { num: each.deployment_num, role, ...figures(each, isJudged && isLast ? rules.bounds : null) };
  });
}

function figures({ replicas, ready, share_percent: share, answers }: RolloutDeployment, bounds: Bounds | null): Omit<Row, "num" | "role"> {
  const common = { replicas: `${ready} of ${replicas} ready`, share: share === null ? "" : `${share}%` };
  if (!answers) {
    const unknown = plain(share === null ? "" : "not known");
    return { ...common, requests: unknown, failed: unknown, latency: unknown };
  }
  const { failed, error_percent: errors, p95_seconds: p95, is_partial: isPartial } = answers;
  const isEnough = bounds !== null && answers.requests >= bounds.requests;
  const requests = counted(answers.requests, isPartial);
  const failures = counted(failed, isPartial, ` (${errors.toFixed(1)}%)`);
  return {
    ...common,
    requests: { ...requests, note: bounds !== null && hasBounds(bounds) && !isEnough ? `judged from ${bounds.requests} on` : "" },
    failed: judged(failures, errors, bounds?.errorPercent ?? null, isEnough),
    latency: beside(plain(p95 === null ? "" : seconds(p95)), bounds?.latency ?? null),
  };
}

function plain(text: string): Figure {
  return { text, spoken: null, note: "", isBeyond: false };
}

/** A number, which is marked where there may be more. */
function counted(number: number, isPartial: boolean, more = ""): Figure {
  const text = number.toLocaleString("en-US");
  return isPartial ? { ...plain(`${text}+${more}`), spoken: `${text} or more${more}` } : plain(text + more);
}

function judged(figure: Figure, percent: number, most: number | null, isEnough: boolean): Figure {
  if (most === null) return figure;
  const isBeyond = isEnough && percent > most;
  return { ...figure, note: `${isBeyond ? "more than" : "at most"} ${most}%`, isBeyond };
}

/** A latency and its bound. It is estimated within a bucket of a histogram, and the server judges by the lower end of that: the two may differ. */
function beside(latency: Figure, most: number | null): Figure {
  return most === null || latency.text === "" ? latency : { ...latency, note: `at most ${seconds(most)}` };
}

/** Where the figures come from; nothing where there are none. */
export function originOf(state: Rollout): string | null {
  if (!isSplit(state)) return null;
  const isPartial = state.deployments.some((each) => each.answers?.is_partial);
  const partial = isPartial ? " Numbers with + are partial, so there may be more: a gateway or another server has not said lately what it has counted." : "";
  return `Counted since the roll-out began, or since whoever counts was started.${partial}`;
}

/** `250 ms`, `2.5 s`. */
export function seconds(value: number): string {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${Number(value.toFixed(2))} s`;
}

/** What becomes of the service when this is asked for, and confirmed. */
export function consequence(action: Action, state: Rollout, rules: Rules): string {
  if (action === "promote") {
    if (state.strategy === "canary") return "The other replicas are replaced one after another from now on, whatever the new ones have answered.";
    return `All requests go to the new replicas, ${state.phase === "ready" ? "at once" : "as soon as all of them are ready"}. The old ones are kept for ${duration(rules.kept)}.`;
  }
  if (state.phase === "following") return "The service asks for what it asked for before. Replicas that are new are replaced one after another.";
  if (state.phase === "kept") return "The service asks for what it asked for before. The old replicas get the requests again; where there are too few of them, new ones are replaced one after another.";
  return "The service asks for what it asked for before. The old replicas go on, and the new ones get no requests any more and are stopped.";
}

/** How an update of a run is made that is planned. */
export function updateText({ configuration }: Run["run_spec"]): string {
  const strategy = configuration.type === "service" ? configuration.rollout?.strategy : null;
  if (strategy === "canary") return "Where replicas must be replaced, a few new ones get a share of the requests and are watched before the others follow.";
  if (strategy === "blue_green") return "Where replicas must be replaced, all new ones get ready beside the old ones, and then get all requests at once.";
  return "What differs is changed, replica by replica.";
}
