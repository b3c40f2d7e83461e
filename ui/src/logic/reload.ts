/** When the page loads itself anew: where a part of it cannot be fetched, as after an update of the server, whose files have other names. */

import type { Store } from "./kept-draft";

const KEY = "dstack.reloaded-at";
/** So long it does not do so again: what is missing still is not brought by loading anew. */
const PAUSE_MS = 60_000;

/** Whether to load anew at this time, in milliseconds; notes that it is done. Without storage it cannot be known whether it was done. */
export function mayReload(store: Store | null, now: number): boolean {
  try {
    const before = store?.getItem(KEY) ?? null;
    if (!store || (before !== null && Math.abs(now - Number(before)) < PAUSE_MS)) return false;
    store.setItem(KEY, String(now));
    return true;
  } catch {
    return false;
  }
}
