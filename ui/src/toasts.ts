/** Short messages that come and go. Errors stay until they are closed. */

import { useSyncExternalStore } from "react";

export interface Toast {
  id: number;
  text: string;
  isError: boolean;
}

const SHOWN_MS = 5000;
let toasts: Toast[] = [];
let next = 1;
const listeners = new Set<() => void>();

function set(value: Toast[]): void {
  toasts = value;
  for (const listener of listeners) listener();
}

export function dismiss(id: number): void {
  set(toasts.filter((toast) => toast.id !== id));
}

export function say(text: string): void {
  const id = next++;
  set([...toasts, { id, text, isError: false }]);
  setTimeout(() => dismiss(id), SHOWN_MS);
}

export function complain(error: unknown): void {
  const text = error instanceof Error ? error.message : String(error);
  if (toasts.some((toast) => toast.text === text)) return;
  set([...toasts, { id: next++, text, isError: true }]);
}

export function useToasts(): Toast[] {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => toasts,
  );
}
