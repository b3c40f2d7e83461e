/** What is read again by itself after it failed, and when. */

import { ApiError, TryLater } from "./errors";
import { waitAfter } from "./patience";

const RETRY_MS = 1000;

/** Whether to ask again after so many failures: always where the server asks for that; what it refused it will refuse again. */
export function mayRetry(failures: number, error: unknown): boolean {
  if (error instanceof TryLater) return true;
  return !(error instanceof ApiError) && failures < 1;
}

/** After how many milliseconds: as the server asks, where it does. */
export function retryDelay(failures: number, error: unknown): number {
  return error instanceof TryLater ? waitAfter(failures, error) : RETRY_MS;
}

/** After how many milliseconds what is followed is asked for again that failed so often in a row; null where that does not help. */
export function pauseAfter(failures: number, error: unknown, usualMs: number): number | null {
  if (error instanceof ApiError && [401, 403, 404].includes(error.status)) return null;
  return error instanceof TryLater ? waitAfter(failures - 1, error) : usualMs;
}

interface Read {
  state: { fetchStatus: string; fetchFailureReason: unknown };
  isActive: () => boolean;
}

/** The refusal that something that is shown waits on before it is read again. */
export function waitedOn(queries: Read[]): TryLater | undefined {
  for (const query of queries) {
    const { fetchStatus, fetchFailureReason: reason } = query.state;
    if (fetchStatus !== "idle" && reason instanceof TryLater && query.isActive()) return reason;
  }
  return undefined;
}
