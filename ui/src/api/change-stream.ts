/** The one stream of changes of a tab: when it is open, when it is opened again, and from where on. */

import { type Change, changesIn } from "../logic/changes";
import { ApiError, TryLater } from "./errors";
import { waitAfter } from "./patience";
import type { Asked, Frame } from "./stream";

/** So long after a connection has ended another one may take its place, before anybody has to ask for changes. */
const GRACE_MS = 2000;
/** The pause before the second try, which doubles with each, up to the most. */
const FIRST_PAUSE_MS = 250;
const MOST_PAUSE_MS = 15_000;
/** A connection that lasted so long was a good one: the pauses begin anew. */
const STEADY_MS = 10_000;
/** How soon a server is asked again that does not know the route, or refuses it: an older one may be updated. */
const REFUSED_PAUSE_MS = 600_000;

/** What is made of what the server tells. */
export interface Hearer {
  /** Whether the server tells of changes now. */
  tells: (is: boolean) => void;
  /** It begins to tell: what was read before that may be older. */
  begins: () => void;
  changed: (changes: Change[]) => void;
  /** It cannot tell what has changed meanwhile. */
  missed: () => void;
  /** It could not be asked. */
  failed: (error: unknown) => void;
}

/** What a stream is wanted for. */
export interface Wanted {
  /** Unset where nobody is signed in. */
  token: string | null;
  /** Whether somebody looks: browsers allow a host few connections, so tabs that nobody sees leave them to others. */
  isSeen: boolean;
  /** The run of which output is told. */
  run: string | null;
}

type Follow = (asked: Asked, hear: (frame: Frame) => void, signal: AbortSignal) => Promise<void>;

export class ChangeStream {
  readonly #follow: Follow;
  readonly #hearer: Hearer;
  #wanted: Wanted = { token: null, isSeen: false, run: null };
  #abort = new AbortController();
  /** The last frame that came. */
  #after: string | null = null;
  /** A run that the server refused to tell of: it is not named again. */
  #refused: string | null = null;
  #tells = false;
  #doubt: ReturnType<typeof setTimeout> | undefined;
  #endPause: () => void = () => undefined;

  constructor(follow: Follow, hearer: Hearer) {
    this.#follow = follow;
    this.#hearer = hearer;
  }

  /** Opens, closes, or opens another one, as it is wanted now. */
  want(wanted: Wanted): void {
    const before = this.#wanted;
    if (wanted.token === before.token && wanted.isSeen === before.isSeen && wanted.run === before.run) return;
    this.#wanted = wanted;
    // What one user was told is not gone on with for another.
    if (wanted.token !== before.token) this.#after = null;
    this.#abort.abort();
    this.#endPause();
    clearTimeout(this.#doubt);
    if (wanted.token === null) return this.#setTells(false);
    if (!wanted.isSeen) return;
    this.#abort = new AbortController();
    this.#doubtSoon();
    void this.#keepOpen(this.#abort.signal);
  }

  /** Tries at once, where it waits to try again. */
  tryNow(): void {
    this.#endPause();
  }

  async #keepOpen(signal: AbortSignal): Promise<void> {
    let failures = 0;
    while (!signal.aborted) {
      const { heardAt, error } = await this.#listen(signal);
      if (signal.aborted) return;
      if (heardAt === null) {
        if (this.#leavesRunOut(error)) continue;
        this.#setTells(false);
        this.#hearer.failed(error);
        if (signal.aborted) return;
      } else {
        this.#doubtSoon();
        if (Date.now() - heardAt > STEADY_MS) failures = 0;
      }
      failures += 1;
      await this.#pause(pauseAfter(failures, error), signal);
    }
  }

  /** One connection: when something came first, and with what it ended. */
  async #listen(signal: AbortSignal): Promise<{ heardAt: number | null; error: unknown }> {
    const { token, run } = this.#wanted;
    const after = this.#after;
    let heardAt: number | null = null;
    const hear = (frame: Frame) => {
      if (signal.aborted) return;
      const isFirst = heardAt === null;
      heardAt ??= Date.now();
      if (frame.id !== null && frame.id !== "") this.#after = frame.id;
      if (isFirst) this.#setTells(true);
      if (frame.event === "reset") this.#hearer.missed();
      else if (frame.event === "changes") this.#hearer.changed(changesIn(frame.data));
      else if (frame.event === "hello" && after === null) this.#hearer.begins();
    };
    try {
      await this.#follow({ token, run: run === this.#refused ? null : run, after }, hear, signal);
      return { heardAt, error: null };
    } catch (error) {
      return { heardAt, error };
    }
  }

  /** Whether it is to be tried without the run, which is gone or not to be seen; without it, the rest is told. */
  #leavesRunOut(error: unknown): boolean {
    const { run } = this.#wanted;
    if (run === null || run === this.#refused || !isRefusal(error) || (error instanceof ApiError && error.isSignedOut)) return false;
    this.#refused = run;
    return true;
  }

  #setTells(is: boolean): void {
    clearTimeout(this.#doubt);
    if (is === this.#tells) return;
    this.#tells = is;
    this.#hearer.tells(is);
  }

  #doubtSoon(): void {
    clearTimeout(this.#doubt);
    this.#doubt = setTimeout(() => this.#setTells(false), GRACE_MS);
  }

  async #pause(ms: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#endPause = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** Whether asking again does not help. */
function isRefusal(error: unknown): boolean {
  return error instanceof ApiError && error.status < 500;
}

/** After how many milliseconds to try again. Those that were cut off together do not come back together. */
export function pauseAfter(failures: number, error: unknown, random = Math.random()): number {
  if (error instanceof TryLater) return waitAfter(failures - 1, error);
  if (isRefusal(error)) return REFUSED_PAUSE_MS;
  const pause = Math.min(MOST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (failures - 1));
  return pause * (0.5 + random / 2);
}
