/** Keeps current what stands further down in a list than its first page: a page around what has changed is read again. */

import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { onChanges } from "../live";
import { firstFurther, type Pages, type Shape, withFurther } from "../logic/live";

/** So many milliseconds lie at least between the beginnings of two readings, and so many times what the last one took. */
const LEAST_GAP_MS = 150;
const GAP_FACTOR = 2;

type ReadPage<T> = (after: T, limit: number, signal: AbortSignal) => Promise<T[]>;

/** Follows changes of the rows of a list whose pages stand under this key, which are of this kind; where it is unset they never change. */
export function useFurther<T>(pagesKey: unknown[], kind: string | undefined, page: ReadPage<T>, shape: Shape<T>): void {
  const client = useQueryClient();
  const hash = JSON.stringify(pagesKey);
  useEffect(() => {
    if (kind === undefined) return;
    const changed = new Set<string>();
    const abort = new AbortController();
    let isReading = false;
    const readOne = async (): Promise<boolean> => {
      const known = client.getQueryData<Pages<T>>(pagesKey);
      const first = known ? firstFurther(known, changed, shape) : null;
      if (first === null) return false;
      const rows = await page(first.after, shape.limit, abort.signal);
      for (const row of [first.row, ...rows]) changed.delete(shape.idOf(row));
      client.setQueryData<Pages<T>>(pagesKey, (now) => now && withFurther(now, first.after, rows, shape));
      return true;
    };
    const readAll = async () => {
      isReading = true;
      for (let start = performance.now(); await readOne().catch(() => false); start = performance.now()) {
        await new Promise((resolve) => setTimeout(resolve, Math.max(LEAST_GAP_MS - (performance.now() - start), (GAP_FACTOR - 1) * (performance.now() - start))));
      }
      isReading = false;
      changed.clear();
    };
    const leave = onChanges((changes) => {
      for (const change of changes) if (change.kind === kind && change.id !== null) changed.add(change.id);
      if (changed.size > 0 && !isReading) void readAll();
    });
    return () => {
      leave();
      abort.abort();
    };
    // What else it is given follows from the key.
  }, [client, hash, kind]);
}
