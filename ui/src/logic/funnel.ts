/** What became of all that could have been had, as steps: how many are left after each check. */

import type { JobExplanation } from "../api/types";

type Check = JobExplanation["backends"][number]["refused"][number]["check"];

/** What is said of those that fall out at a check. */
const CHECKS: Record<Check, string> = {
  place: "are elsewhere",
  instance_type: "are of another type",
  gpu: "have other GPUs",
  cpu: "have other CPUs",
  memory: "have other memory",
  disk: "have another disk",
  spot: "are spot, or are not",
  price: "cost too much",
  availability: "cannot be had now",
};

/** What a check is called where there is little room. */
export const CHECK_NAMES: Record<Check, string> = {
  place: "Place",
  instance_type: "Type",
  gpu: "GPU",
  cpu: "CPU",
  memory: "Memory",
  disk: "Disk",
  spot: "Spot",
  price: "Price",
  availability: "Availability",
};
export const CHECK_ORDER = Object.keys(CHECKS) as Check[];

export interface Step {
  check: Check | null;
  /** What is said of those that fell out here. */
  why: string;
  lost: number;
  left: number;
}

export interface Funnel {
  key: string;
  name: string;
  /** What is counted: offers, or instances. */
  of: "offer" | "instance";
  total: number;
  fit: number;
  cheapest: number | null;
  steps: Step[];
}

function stepsOf(total: number, losses: { check: Check | null; why: string; lost: number }[]): Step[] {
  let left = total;
  return losses.map((loss) => {
    left -= loss.lost;
    return { ...loss, left };
  });
}

/** Things by what is said of them, in the order in which that is said first. */
function grouped<T>(all: T[], by: (one: T) => string): [string, T[]][] {
  const groups = new Map<string, T[]>();
  for (const one of all) groups.set(by(one), [...(groups.get(by(one)) ?? []), one]);
  return [...groups];
}

/** Of each fleet that has instances, and of each backend that offers something: those first of which most fit. */
export function funnels(explanation: JobExplanation): Funnel[] {
  const fleets = grouped(explanation.instances, (instance) => instance.fleet).map(([fleet, instances]): Funnel => {
    const refused = instances.filter((instance) => !instance.available);
    // Those with the same first reason fall out together.
    const reasons = grouped(refused, (instance) => instance.reasons[0] ?? "cannot take it");
    const losses = reasons.map(([why, own]) => ({ check: null, why, lost: own.length })).sort((a, b) => b.lost - a.lost);
    return { key: `fleet ${fleet}`, name: `Fleet ${fleet}`, of: "instance", total: instances.length, fit: instances.length - refused.length, cheapest: null, steps: stepsOf(instances.length, losses) };
  });
  const backends = explanation.backends.map(({ backend, total, fit, cheapest, refused }): Funnel => {
    const losses = refused.map(({ check, offers }) => ({ check, why: CHECKS[check], lost: offers }));
    return { key: `backend ${backend}`, name: backend, of: "offer", total, fit, cheapest, steps: stepsOf(total, losses) };
  });
  const byFit = (a: Funnel, b: Funnel) => b.fit - a.fit || b.total - a.total || a.name.localeCompare(b.name);
  return [...fleets.sort(byFit), ...backends.sort(byFit)];
}

/** The cheapest offer of all that fit: where, and dollars an hour. */
export function cheapestOf(all: Funnel[]): { name: string; price: number } | null {
  const priced = all.flatMap(({ name, cheapest }) => (cheapest === null ? [] : [{ name, price: cheapest }]));
  return priced.length === 0 ? null : priced.reduce((a, b) => (b.price < a.price ? b : a));
}

/** How long a bar is, of 100: what is there at all is still seen. */
export function barOf(count: number, most: number): number {
  if (count === 0 || most === 0) return 0;
  return Math.max(2, (count / most) * 100);
}
