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

/** Gives the document the colours that are wanted: those chosen here, or else those of the system as they are now. */
export function applyTheme(): void {
  const chosen = read("theme");
  const ofSystem = ofSystemIsDark().matches ? "dark" : "light";
  document.documentElement.dataset["theme"] = chosen === "light" || chosen === "dark" ? chosen : ofSystem;
}

/** As `applyTheme`, now and whenever those of the system change. */
export function followTheme(): void {
  applyTheme();
  ofSystemIsDark().addEventListener("change", applyTheme);
}

function ofSystemIsDark(): MediaQueryList {
  return matchMedia("(prefers-color-scheme: dark)");
}
