/** Who is signed in: the token, kept by the browser for all tabs. */

import { useSyncExternalStore } from "react";

const KEY = "dstack.token";
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

export const session = {
  token: read,
  signIn: (token: string) => write(token),
  signOut: () => write(null),
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
