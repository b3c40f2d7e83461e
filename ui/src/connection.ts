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

/** Of several questions that are under way, the last one counts. */
let questions = 0;

async function ask(client: QueryClient): Promise<void> {
  const own = ++questions;
  const isThere = await isAlive();
  if (own !== questions) return;
  if (isThere) {
    serverIsThere(client);
  } else {
    again = setTimeout(() => void ask(client), RETRY_MS);
  }
}

export function serverWasLost(client: QueryClient): void {
  if (lost) return;
  set(true);
  again = setTimeout(() => void ask(client), RETRY_MS);
}

/** It has answered, whatever it was asked. */
export function serverIsThere(client: QueryClient): void {
  if (!lost) return;
  clearTimeout(again);
  questions += 1;
  set(false);
  void client.invalidateQueries();
}

/** Asks at once, for readers who do not want to wait. */
export function askNow(client: QueryClient): void {
  clearTimeout(again);
  void ask(client);
}

export function isLost(): boolean {
  return lost;
}

/** Hears of it when the server is lost, and found again. */
export function subscribeToLoss(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useIsLost(): boolean {
  return useSyncExternalStore(subscribeToLoss, isLost);
}
