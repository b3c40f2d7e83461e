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
  /** The pause before the next reading, where nobody asks for it sooner. */
  everyMs: () => number;
  /** The pause after so many failures in a row; null where it is not tried again. */
  pauseAfter: (failures: number, error: unknown) => number | null;
  /** Whether nobody looks now: then nothing is read. */
  isHidden: () => boolean;
  /** Called with what is wrong, and with null once it is not any more. */
  tell: (trouble: Trouble | null) => void;
}

export interface Following {
  stop: () => void;
  /** Reads at once, or as soon as it may: there is something new. */
  now: () => void;
}

/** So many milliseconds lie at least between the beginnings of two readings, */
const LEAST_GAP_MS = 150;
/** and so many times what the last one took: stores outside the server allow few readings. */
const GAP_FACTOR = 5;

/** Begins at once. */
export function follow({ read, isLive, everyMs, pauseAfter, isHidden, tell }: Followed): Following {
  const abort = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let failures = 0;
  let isReading = false;
  /** Whether it was asked for since the last reading began. */
  let isWanted = false;
  /** When it may be read again. */
  let next = 0;
  const later = (ms: number) => {
    clearTimeout(timer);
    timer = setTimeout(() => void step(), ms);
  };
  const soon = () => later(Math.max(0, next - performance.now()));
  const failed = (error: unknown) => {
    failures += 1;
    const againMs = pauseAfter(failures, error);
    tell({ error, failures, againMs });
    if (againMs !== null) later(againMs);
  };
  const step = async () => {
    if (isHidden()) return later(everyMs());
    // What came between this and the end of the reading is read once more.
    const mayBeMore = isLive();
    const start = performance.now();
    isWanted = false;
    isReading = true;
    try {
      await read(abort.signal);
    } catch (error) {
      if (!abort.signal.aborted) failed(error);
      return;
    } finally {
      isReading = false;
      next = start + Math.max(LEAST_GAP_MS, GAP_FACTOR * (performance.now() - start));
    }
    if (abort.signal.aborted) return;
    failures = 0;
    tell(null);
    if (isWanted) soon();
    else if (mayBeMore) later(everyMs());
  };
  void step();
  return {
    stop: () => {
      abort.abort();
      clearTimeout(timer);
    },
    now: () => {
      isWanted = true;
      // While it fails it is tried again when that was said.
      if (!isReading && failures === 0 && !abort.signal.aborted) soon();
    },
  };
}

/** Says that it is tried again, and when. */
export function tryingAgain({ failures, againMs }: Trouble): string | null {
  if (againMs === null) return null;
  const seconds = Math.ceil(againMs / 1000);
  return `It is tried again in ${seconds} s${failures > 1 ? `; it has failed ${failures} times` : ""}.`;
}
