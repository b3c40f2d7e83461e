/** One connection by which the server tells of changes. */

import { createParser } from "eventsource-parser";
import { open, ServerLost } from "./client";

const PATH = "/api/changes/follow";
/** A connection by which nothing comes for so long, not even a comment, is taken for dead. The server sends one each 15 s. */
const SILENT_MS = 40_000;

/** What the server tells at once. */
export interface Frame {
  event: string;
  data: string;
  /** By which what comes after it is asked for; null where it has none. */
  id: string | null;
}

export interface Asked {
  token: string | null;
  /** The run of which output is told; null for none. */
  run: string | null;
  /** The last frame that came; null to begin now. */
  after: string | null;
}

/** Follows changes until the server ends it; fails where it refuses, is not there any more, or is silent for too long. */
export async function followChanges({ token, run, after }: Asked, hear: (frame: Frame) => void, signal: AbortSignal): Promise<void> {
  const connection = watched(SILENT_MS, signal);
  const query: Record<string, string> = run === null ? {} : { run_id: run };
  const headers: Record<string, string> = after === null ? {} : { "Last-Event-ID": after };
  const parser = createParser({ onEvent: ({ event, data, id }) => hear({ event: event ?? "message", data, id: id ?? null }) });
  const text = new TextDecoder();
  const failed = (error: unknown) => {
    if (connection.signal.aborted && !signal.aborted) throw new ServerLost("The server has told nothing for too long.");
    throw error;
  };
  const brokenOff = (error: unknown) => failed(connection.signal.aborted ? error : new ServerLost("The stream of changes broke off."));
  try {
    const reader = (await open(PATH, query, headers, token, connection.signal).catch(failed)).getReader();
    for (;;) {
      const { done, value } = await reader.read().catch(brokenOff);
      if (done) return;
      connection.isHeard();
      parser.feed(text.decode(value, { stream: true }));
    }
  } finally {
    connection.close();
  }
}

interface Watched {
  /** Given with the signal that it was made of, and when nothing was heard for too long. */
  signal: AbortSignal;
  isHeard: () => void;
  close: () => void;
}

function watched(silentMs: number, other: AbortSignal): Watched {
  const abort = new AbortController();
  const close = () => {
    clearTimeout(timer);
    other.removeEventListener("abort", close);
    abort.abort();
  };
  let timer = setTimeout(close, silentMs);
  other.addEventListener("abort", close);
  if (other.aborted) close();
  const isHeard = () => {
    clearTimeout(timer);
    timer = setTimeout(close, silentMs);
  };
  return { signal: abort.signal, isHeard, close };
}
