/** Reading the same again and again, and what is told while that fails. */

export interface Trouble {
  error: unknown;
  /** So often it failed in a row. */
  failures: number;
  /** In so many milliseconds it is tried again; null where that does not help. */
  againMs: number | null;
}

interface Followed {
  read: (signal: AbortSignal) => Promise<void>;
  /** Whether there may be more later; where not, one success is the end. */
  isLive: () => boolean;
  everyMs: number;
  /** The pause after so many failures in a row; null where it is not tried again. */
  pauseAfter: (failures: number, error: unknown) => number | null;
  /** Whether nobody looks now: then nothing is read. */
  isHidden: () => boolean;
  /** Called with what is wrong, and with null once it is not any more. */
  tell: (trouble: Trouble | null) => void;
}

/** Begins at once; what it answers ends it. */
export function follow({ read, isLive, everyMs, pauseAfter, isHidden, tell }: Followed): () => void {
  const abort = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let failures = 0;
  const later = (ms: number) => {
    timer = setTimeout(() => void step(), ms);
  };
  const failed = (error: unknown) => {
    failures += 1;
    const againMs = pauseAfter(failures, error);
    tell({ error, failures, againMs });
    if (againMs !== null) later(againMs);
  };
  const step = async () => {
    if (isHidden()) return later(everyMs);
    // What came between this and the end of the reading is read once more.
    const mayBeMore = isLive();
    try {
      await read(abort.signal);
    } catch (error) {
      if (!abort.signal.aborted) failed(error);
      return;
    }
    if (abort.signal.aborted) return;
    failures = 0;
    tell(null);
    if (mayBeMore) later(everyMs);
  };
  void step();
  return () => {
    abort.abort();
    clearTimeout(timer);
  };
}

/** Says that it is tried again, and when. */
export function tryingAgain({ failures, againMs }: Trouble): string | null {
  if (againMs === null) return null;
  const seconds = Math.ceil(againMs / 1000);
  return `It is tried again in ${seconds} s${failures > 1 ? `; it has failed ${failures} times` : ""}.`;
}
