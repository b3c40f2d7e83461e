/** Reads again what has changed: at once, one reading of a thing at a time, and not without pauses. */

import type { Query, QueryClient } from "@tanstack/react-query";

/** So many milliseconds lie at least between the beginnings of two readings of the same. */
const LEAST_GAP_MS = 150;
/** And so many times what the last one took: a server that has much to do is asked less often. */
const GAP_FACTOR = 2;

/** How a query may say that it is not to be read again so soon. */
export interface Meta extends Record<string, unknown> {
  gapMs?: number;
}

interface Turn {
  /** Whether something has changed since it was last asked for. */
  isDue: boolean;
  isUnderWay: boolean;
  /** When it may be asked for again. */
  next: number;
}

type AnyQuery = Query<unknown, Error, unknown, readonly unknown[]>;

export class Refresher {
  readonly #client: QueryClient;
  readonly #turns = new WeakMap<AnyQuery, Turn>();

  constructor(client: QueryClient) {
    this.#client = client;
  }

  /** What was read and is one of these is read again where it is shown, and else when it is shown again. */
  refresh(is: (query: AnyQuery) => boolean): void {
    for (const query of this.#client.getQueryCache().findAll()) {
      if (!is(query)) continue;
      if (query.isActive()) this.#again(query);
      else query.invalidate();
    }
  }

  #again(query: AnyQuery): void {
    const turn = this.#turns.get(query) ?? { isDue: false, isUnderWay: false, next: 0 };
    this.#turns.set(query, turn);
    turn.isDue = true;
    if (!turn.isUnderWay) void this.#readWhileDue(query, turn);
  }

  async #readWhileDue(query: AnyQuery, turn: Turn): Promise<void> {
    turn.isUnderWay = true;
    while (turn.isDue) {
      await passed(turn.next - performance.now());
      // What is under way may have been answered before the change.
      await this.#settled(query);
      turn.isDue = false;
      // Whoever signed out left nothing to read.
      if (!this.#isKept(query)) break;
      if (!query.isActive()) {
        query.invalidate();
        break;
      }
      const start = performance.now();
      await this.#client.refetchQueries({ predicate: (each) => each === query }, { cancelRefetch: false });
      turn.next = start + Math.max(gapOf(query), GAP_FACTOR * (performance.now() - start));
    }
    turn.isUnderWay = false;
  }

  async #settled(query: AnyQuery): Promise<void> {
    // One that was thrown away while it was read stays as it was then.
    while (query.state.fetchStatus !== "idle" && this.#isKept(query)) {
      await query.promise?.catch(() => undefined);
      // The query hears of it after its promise, and must have.
      await new Promise((resolve) => setTimeout(resolve));
    }
  }

  #isKept(query: AnyQuery): boolean {
    return this.#client.getQueryCache().get(query.queryHash) === query;
  }
}

function gapOf({ meta }: AnyQuery): number {
  return (meta as Meta | undefined)?.gapMs ?? LEAST_GAP_MS;
}

async function passed(ms: number): Promise<void> {
  if (ms > 0) await new Promise((resolve) => setTimeout(resolve, ms));
}
