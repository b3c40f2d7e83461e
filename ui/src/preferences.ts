/** What the browser remembers of this page's settings. */

import { useCallback, useSyncExternalStore } from "react";

const listeners = new Set<() => void>();
const unsaved = new Map<string, string>();

function read(key: string): string | null {
  try {
    return localStorage.getItem(`dstack.${key}`);
  } catch {
    return unsaved.get(key) ?? null;
  }
}

export function remember(key: string, value: string): void {
  unsaved.set(key, value);
  try {
    localStorage.setItem(`dstack.${key}`, value);
  } catch {
    // Kept in memory only.
  }
  for (const listener of listeners) listener();
}

/** A remembered value, and how it is changed. */
export function usePreference(key: string, initial: string): [string, (value: string) => void] {
  const subscribe = useCallback((listener: () => void) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  const value = useSyncExternalStore(subscribe, () => read(key) ?? initial);
  return [value, useCallback((next: string) => remember(key, next), [key])];
}

export type Theme = "auto" | "light" | "dark";

export function applyTheme(): void {
  const theme = read("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset["theme"] = theme;
  else delete document.documentElement.dataset["theme"];
}
