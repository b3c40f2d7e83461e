/** Which failed calls are made again by themselves, and when. */

import { ApiError, TryLater } from "./client";

const BUSY_RETRIES = 5;
const RETRY_MS = 1000;

/** Whether to ask again after so many failures. What the server refused it will refuse again. */
export function mayRetry(failures: number, error: unknown): boolean {
  if (error instanceof TryLater) return failures < BUSY_RETRIES;
  return !(error instanceof ApiError) && failures < 1;
}

/** After how many milliseconds: as the server asks, where it does. */
export function retryDelay(_: number, error: unknown): number {
  return error instanceof TryLater ? error.afterMs : RETRY_MS;
}
