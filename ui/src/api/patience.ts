/** When the server is asked again that said it cannot do something now, and what is waited for meanwhile. */

import { TryLater } from "./errors";

/** Longer than this nothing waits before it asks again. */
export const MOST_WAIT_MS = 60_000;
/** Those that were refused together do not come back together for ever: each time it is so much longer. */
const LONGER_MS = 500;

/** What somebody does is tried so often, and waits so long at most each time; a longer wait is theirs to decide. */
const MOST_TRIES = 8;
const MOST_ACTION_WAIT_MS = 10_000;

/** How many milliseconds to wait after so many failures before this one. */
export function waitAfter(failures: number, error: TryLater): number {
  return Math.min(MOST_WAIT_MS, error.afterMs + failures * LONGER_MS);
}

/** What actions wait for now. */
let waits: readonly TryLater[] = [];
const listeners = new Set<() => void>();

function setWaits(value: readonly TryLater[]): void {
  waits = value;
  for (const listener of listeners) listener();
}

export function subscribeToWaits(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The refusal that an action waits on now. */
export function awaited(): TryLater | undefined {
  return waits[0];
}

async function wait(error: TryLater, ms: number): Promise<void> {
  setWaits([...waits, error]);
  await new Promise((resolve) => setTimeout(resolve, ms));
  setWaits(waits.filter((each) => each !== error));
}

/** Makes a call, and again while the server has too much to do to look at it, unless it is not wanted any more by then. */
export async function patiently<T>(call: () => Promise<T>, isWanted: () => boolean = () => true): Promise<T> {
  for (let failures = 0; ; failures += 1) {
    try {
      return await call();
    } catch (error) {
      const mayWait = error instanceof TryLater && error.isUntouched && error.afterMs <= MOST_ACTION_WAIT_MS;
      if (!mayWait || failures + 1 >= MOST_TRIES) throw error;
      await wait(error, waitAfter(failures, error));
      if (!isWanted()) throw error;
    }
  }
}
