/** Keeps current what stands further down in a list than its first page: a page around what has changed is read again. */

import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { onChanges } from "../live";
import { firstFurther, type Pages, type Shape, withFurther } from "../logic/live";

/** So many milliseconds lie at least between the beginnings of two readings, and so many times what the last one took. */
const LEAST_GAP_MS = 150;
const GAP_FACTOR = 2;
/** What does not come is asked for again, after so many milliseconds at the longest. */
const LONGEST_PAUSE_MS = 30_000;

type ReadPage<T> = (after: T, limit: number, signal: AbortSignal) => Promise<T[]>;

/** Follows changes of the rows of a list whose pages stand under this key, which are of this kind; where it is unset they never change. */
export function useFurther<T>(pagesKey: unknown[], kind: string | undefined, page: ReadPage<T>, shape: Shape<T>): void {
  const client = useQueryClient();
  const hash = JSON.stringify(pagesKey);
  useEffect(() => {
    if (kind === undefined) return;
    /** Ids of what has changed, each with when that was told: what is told while a page is read is not in its answer. */
    const changed = new Map<string, number>();
    let clock = 0;
    const abort = new AbortController();
    let isReading = false;
    const readOne = async (): Promise<boolean> => {
      const known = client.getQueryData<Pages<T>>(pagesKey);
      const first = known ? firstFurther(known, new Set(changed.keys()), shape) : null;
      if (first === null) return false;
      const asked = clock;
      const rows = await page(first.after, shape.limit, abort.signal);
      for (const row of [first.row, ...rows]) {
        const id = shape.idOf(row);
        if ((changed.get(id) ?? Infinity) <= asked) changed.delete(id);
      }
      client.setQueryData<Pages<T>>(pagesKey, (now) => now && withFurther(now, first.after, rows, shape));
      return true;
    };
    const readAll = async () => {
      isReading = true;
      for (let failures = 0; !abort.signal.aborted; ) {
        const start = performance.now();
        try {
          if (!(await readOne())) break;
          failures = 0;
        } catch {
          failures += 1;
        }
        const took = performance.now() - start;
        const pause = failures > 0 ? Math.min(LONGEST_PAUSE_MS, 1000 * 2 ** failures) : Math.max(LEAST_GAP_MS - took, (GAP_FACTOR - 1) * took);
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
      isReading = false;
      changed.clear();
    };
    const leave = onChanges((changes) => {
      for (const change of changes) if (change.kind === kind && change.id !== null) changed.set(change.id, ++clock);
      if (changed.size > 0 && !isReading) void readAll();
    });
    return () => {
      leave();
      abort.abort();
    };
    // What else it is given follows from the key.
  }, [client, hash, kind]);
}
