/** Keys that mean something on every page. */

interface Pressed {
  key: string;
  ctrlKey: boolean;
  metaKey: boolean;
  defaultPrevented: boolean;
}

/** What is asked of the element that a key goes to. */
export interface Place {
  closest: (selector: string) => unknown;
}

/**
 * Whether a key opens the palette: Ctrl+K, unless an editor has made use of it, and `/` where nobody types.
 * The place is the first of the event's path: from outside, an editor in a shadow root is its host, in which nobody types.
 */
export function opensPalette({ key, ctrlKey, metaKey, defaultPrevented }: Pressed, place: Place | null): boolean {
  if (defaultPrevented) return false;
  if (key === "k") return ctrlKey || metaKey;
  return key === "/" && !ctrlKey && !metaKey && !place?.closest("input, textarea, select, [contenteditable]");
}
