/** Whether the server answers. While it does not, it is asked again until it does; then everything shown is read anew. */

import type { QueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";
import { isAlive } from "./api/client";

let lost = false;
let again: ReturnType<typeof setTimeout> | undefined;
const listeners = new Set<() => void>();
const RETRY_MS = 2000;

function set(value: boolean): void {
  lost = value;
  for (const listener of listeners) listener();
}

export function serverWasLost(client: QueryClient): void {
  if (lost) return;
  set(true);
  const ask = async () => {
    if (await isAlive()) {
      set(false);
      await client.invalidateQueries();
    } else {
      again = setTimeout(() => void ask(), RETRY_MS);
    }
  };
  again = setTimeout(() => void ask(), RETRY_MS);
}

/** Asks at once, for readers who do not want to wait. */
export function askNow(client: QueryClient): void {
  clearTimeout(again);
  lost = false;
  serverWasLost(client);
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useIsLost(): boolean {
  return useSyncExternalStore(subscribe, () => lost);
}
