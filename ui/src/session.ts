/** Who is signed in: the token, kept by the browser for all tabs. */

import { useSyncExternalStore } from "react";

const KEY = "dstack.token";
/** The last time that somebody signed out, for tabs that have something to forget. */
const SIGNED_OUT = "dstack.signed-out";
const listeners = new Set<() => void>();

/** Storage that may be switched off: then a session lasts as long as the page. */
let memory: string | null = null;

function read(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return memory;
  }
}

function write(token: string | null): void {
  memory = token;
  try {
    if (token === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, token);
  } catch {
    // Kept in memory only.
  }
  for (const listener of listeners) listener();
}

/** Notes that somebody signed out, before anybody hears that the token is gone. */
function noteSignedOut(): void {
  try {
    localStorage.setItem(SIGNED_OUT, new Date().toISOString());
  } catch {
    // Then no other tab has the session either.
  }
}

export const session = {
  token: read,
  signIn: (token: string) => write(token),
  /** The token is not good any more: who signs in again goes on where they were. */
  expire: () => write(null),
  /** Somebody leaves: nothing of theirs stays in any tab. */
  signOut: () => {
    noteSignedOut();
    write(null);
  },
  /** Which signing out was the last; unset where there was none. */
  signedOut: (): string | null => {
    try {
      return localStorage.getItem(SIGNED_OUT);
    } catch {
      return null;
    }
  },
  subscribe(listener: () => void): () => void {
    listeners.add(listener);
    const onStorage = (event: StorageEvent) => {
      if (event.key === KEY || event.key === null) listener();
    };
    globalThis.addEventListener("storage", onStorage);
    return () => {
      listeners.delete(listener);
      globalThis.removeEventListener("storage", onStorage);
    };
  },
};

export function useToken(): string | null {
  return useSyncExternalStore(session.subscribe, session.token);
}
