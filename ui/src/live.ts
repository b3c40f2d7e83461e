/** What the server tells of changes, and what the page makes of it: what is shown and has changed is read again at once. */

import type { QueryClient } from "@tanstack/react-query";
import { ChangeStream } from "./api/change-stream";
import { isAlive, ServerLost } from "./api/client";
import { setTold } from "./api/pace";
import { Refresher } from "./api/refresher";
import { followChanges } from "./api/stream";
import { isLost, serverIsThere, serverWasLost, subscribeToLoss } from "./connection";
import { type Change, concerns, isTold, keysOfAll } from "./logic/changes";
import { session } from "./session";

/** What is read while the page begins to be told of changes may be older than that: so long after it, it is read once more. */
const ONCE_MORE_MS = 1000;

/** Hears of the output of a run; with `isMore`, some was stored. */
type OutputListener = (isMore: boolean) => void;

type ChangesListener = (changes: Change[]) => void;

/** Those that show output, by run; the last one is the run that is followed. */
const outputs = new Map<string, Set<OutputListener>>();
const listeners = new Set<ChangesListener>();
let stream: ChangeStream | undefined;

/** Follows changes from now on, for whoever is signed in, while the page is seen. */
export function startLive(client: QueryClient, onError: (error: unknown) => void): void {
  const refresher = new Refresher(client);
  const readTold = () => refresher.refresh((query) => isTold(query.queryKey));
  /** Whether all is read already, since the server was lost until this frame came. */
  let isReadingAll = false;
  stream = new ChangeStream(followChanges, {
    tells: (is) => {
      setTold(is);
      if (is) {
        isReadingAll = isLost();
        queueMicrotask(() => {
          isReadingAll = false;
        });
        return serverIsThere(client);
      }
      // What is read again by itself goes on at its own pace from then on.
      readTold();
      toOutputs(false);
    },
    begins: () => {
      setTimeout(readTold, ONCE_MORE_MS);
      toOutputs(false);
    },
    changed: (changes) => {
      const concerned = keysOfAll(changes);
      if (concerned.length > 0) refresher.refresh((query) => concerned.some((each) => concerns(each, query.queryKey, query.state.status === "error" ? null : query.state.data)));
      for (const listener of listeners) listener(changes);
      for (const run of runsWithOutput(changes)) outputs.get(run)?.forEach((hear) => hear(true));
    },
    missed: () => {
      if (!isReadingAll) refresher.refresh(() => true);
      toOutputs(false);
    },
    failed: (error) => {
      if (error instanceof ServerLost) void missIfAway(client);
      else onError(error);
    },
  });
  session.subscribe(want);
  document.addEventListener("visibilitychange", () => {
    want();
    toOutputs(false);
  });
  subscribeToLoss(() => {
    if (!isLost()) stream?.tryNow();
  });
  want();
}

/** Hears of changes, those of things of which nothing was read among them. */
export function onChanges(listener: ChangesListener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Has it told when output of a run is stored, for as long as it is shown. */
export function followOutput(run: string, hear: OutputListener): () => void {
  const all = outputs.get(run) ?? new Set();
  outputs.set(run, all.add(hear));
  want();
  return () => {
    all.delete(hear);
    if (all.size === 0 && outputs.get(run) === all) outputs.delete(run);
    // Who shows the same run next is there by then.
    setTimeout(want);
  };
}

function want(): void {
  const run = [...outputs.keys()].at(-1) ?? null;
  stream?.want({ token: session.token(), isSeen: document.visibilityState === "visible", run });
}

function toOutputs(isMore: boolean): void {
  for (const all of outputs.values()) for (const hear of all) hear(isMore);
}

function runsWithOutput(changes: Change[]): Set<string> {
  return new Set(changes.flatMap(({ kind, id }) => (kind === "logs" && id !== null ? [id] : [])));
}

/** A stream alone may be what a proxy does not let through. */
async function missIfAway(client: QueryClient): Promise<void> {
  if (!(await isAlive())) serverWasLost(client);
}
