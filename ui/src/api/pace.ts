/** How often what is shown is read again by itself: seldom while the server tells of changes. */

/** So often then, in milliseconds: should something not have been told. */
const TOLD_MS = 60_000;

let areTold = false;

export function setTold(value: boolean): void {
  areTold = value;
}

/** Whether the server tells of changes now. */
export function isTelling(): boolean {
  return areTold;
}

/** The pause between two readings of what is read so often where nothing is told. */
export function pace(ms: number, toldMs = TOLD_MS): number {
  return areTold ? Math.max(ms, toldMs) : ms;
}

/** As `pace`, asked for again each time. */
export function paced(ms: number): () => number {
  return () => pace(ms);
}
