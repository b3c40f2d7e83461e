/** Reads the output of a submission of a job, and goes on while it may print more. */

import { useCallback, useEffect, useRef, useState } from "react";
import { post } from "../api/client";
import { pace } from "../api/pace";
import { LIVE_MS } from "../api/queries";
import { pauseAfter } from "../api/retry";
import type { LogEvent } from "../api/types";
import { followOutput } from "../live";
import { follow, type Following, type Trouble } from "../logic/follow";
import { type Asked, begun, type Kept, lastGap, newer, NOTHING, withMissing, withNewer } from "../logic/output";

const PAGE = 1000;
const FOLLOW_MS = LIVE_MS / 2;
/** How often it is read all the same while the server tells of output. */
const TOLD_MS = 15_000;
/** Some stores show only seconds later what they took: for so long after it was told, output is read again and again. */
const SETTLING_MS = 10_000;
/** So many of the last events are kept, to know those that are said again. */
const RECENT = 2000;

export interface Followed {
  project: string;
  /** The id of the run. */
  run: string;
  runName: string;
  submission: string;
  isLive: boolean;
}

export interface Output extends Kept {
  isLoading: boolean;
  /** Why it is not read on now. */
  trouble: Trouble | null;
  /** Why what is missing could not be read. */
  missingError: unknown;
  /** The chunk before which output is read now. */
  reading: number | null;
  externalUrl: string | null;
  /** Reads a page of what is missing before a chunk. */
  readMissing: (chunk: number) => void;
  readLastGap: () => void;
  /** Whether all that is missing is read, page after page. */
  readsAll: boolean;
  setReadsAll: (is: boolean) => void;
}

export function useOutput({ project, run, runName, submission, isLive }: Followed, diagnose: boolean): Output {
  const [kept, setKept] = useState<Kept>(NOTHING);
  const [isLoading, setLoading] = useState(true);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [externalUrl, setExternalUrl] = useState<string | null>(null);
  const live = useRef(isLive);
  live.current = isLive;
  const following = useRef<Following>(null);
  const toldAt = useRef(-Infinity);
  const poll = useCallback(
    (asked: Asked, signal: AbortSignal) =>
      post("/api/project/{project_name}/logs/poll", {
        params: { project_name: project },
        body: { run_name: runName, job_submission_id: submission, limit: PAGE, diagnose, ...asked },
        signal,
      }),
    [project, runName, submission, diagnose],
  );

  useEffect(() => {
    /** The last events, oldest first; unset before the first are read. */
    let recent: LogEvent[] | undefined;
    const begin = async (signal: AbortSignal) => {
      const page = await poll({ descending: true }, signal);
      if (signal.aborted) return;
      recent = page.logs.toReversed();
      setKept(begun(page));
      setExternalUrl(page.external_url);
      setLoading(false);
    };
    const readOn = async (known: LogEvent[], signal: AbortSignal) => {
      const fresh = await newer((asked) => poll(asked, signal), known);
      if (signal.aborted || fresh.events.length === 0) return;
      recent = [...known, ...fresh.events].slice(-RECENT);
      setKept((before) => withNewer(before, fresh));
    };
    setKept(NOTHING);
    setTrouble(null);
    setLoading(true);
    const own = follow({
      read: (signal) => (recent === undefined ? begin(signal) : readOn(recent, signal)),
      // A store may show the last lines later than it is told of them.
      isLive: () => live.current || performance.now() - toldAt.current < SETTLING_MS,
      everyMs: () => (performance.now() - toldAt.current < SETTLING_MS ? FOLLOW_MS : pace(FOLLOW_MS, TOLD_MS)),
      pauseAfter: (failures, error) => pauseAfter(failures, error, LIVE_MS),
      isHidden: () => document.hidden,
      tell: setTrouble,
    });
    following.current = own;
    return own.stop;
  }, [poll]);

  useEffect(() => {
    if (!isLive) return;
    const leave = followOutput(run, (isMore) => {
      if (isMore) toldAt.current = performance.now();
      following.current?.now();
    });
    return () => {
      leave();
      // What it printed last is read at once where it has ended.
      following.current?.now();
    };
  }, [run, isLive]);

  return { ...kept, isLoading, trouble, externalUrl, ...useMissing(kept, setKept, poll) };
}

type Poll = (asked: Asked, signal: AbortSignal) => Promise<Parameters<typeof begun>[0]>;
type Missing = Pick<Output, "missingError" | "reading" | "readMissing" | "readLastGap" | "readsAll" | "setReadsAll">;

/** Reads what is missing: of one gap when it is asked for, or of all of them. */
function useMissing(kept: Kept, setKept: (change: (before: Kept) => Kept) => void, poll: Poll): Missing {
  const [error, setError] = useState<unknown>(null);
  const [reading, setReading] = useState<number | null>(null);
  const [readsAll, setReadsAll] = useState(false);
  const underWay = useRef<AbortController>(null);
  const latest = useRef(kept);
  latest.current = kept;

  useEffect(() => {
    setError(null);
    setReading(null);
    setReadsAll(false);
    // What is under way belongs into other output than what comes next.
    return () => {
      underWay.current?.abort();
      underWay.current = null;
    };
  }, [poll]);

  const readMissing = useCallback(
    (id: number) => {
      const gap = latest.current.lines.chunks.find((chunk) => chunk.id === id)?.gap;
      if (!gap || underWay.current) return;
      const own = new AbortController();
      underWay.current = own;
      setError(null);
      setReading(id);
      poll(gap.asked, own.signal)
        .then((page) => {
          if (!own.signal.aborted) setKept((before) => withMissing(before, id, page));
        })
        .catch((failed: unknown) => {
          if (own.signal.aborted) return;
          setError(failed);
          setReadsAll(false);
        })
        .finally(() => {
          if (underWay.current !== own) return;
          underWay.current = null;
          setReading(null);
        });
    },
    [poll, setKept],
  );

  const next = lastGap(kept)?.id;
  const readLastGap = useCallback(() => {
    if (next !== undefined) readMissing(next);
  }, [next, readMissing]);
  useEffect(() => {
    if (!readsAll || reading !== null) return;
    if (next === undefined) setReadsAll(false);
    else readMissing(next);
  }, [readsAll, reading, next, readMissing]);
  return { missingError: error, reading, readMissing, readLastGap, readsAll, setReadsAll };
}
