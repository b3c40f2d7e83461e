/** What somebody has written and not applied yet, kept by the tab: it outlives loading the page anew and signing in again. */

interface Draft {
  /** Where it started from: with another start, it is another draft. */
  start: string;
  text: string;
}

const PREFIX = "dstack.draft.";

/** What is asked of the tab's storage. */
export type Store = Pick<Storage, "getItem" | "setItem" | "removeItem" | "key" | "length">;

/** The tab's own storage; unset where it is switched off. */
export function tabStorage(): Store | null {
  try {
    return sessionStorage;
  } catch {
    return null;
  }
}

/** The draft of this name that started from this text. */
export function keptDraft(store: Store | null, name: string, start: string): string | null {
  try {
    const draft = JSON.parse(store?.getItem(PREFIX + name) ?? "null") as Draft | null;
    return draft !== null && draft.start === start && typeof draft.text === "string" ? draft.text : null;
  } catch {
    return null;
  }
}

/** Keeps a draft, or forgets it where it says what it started from. */
export function keepDraft(store: Store | null, name: string, start: string, text: string): void {
  try {
    if (text === start) store?.removeItem(PREFIX + name);
    else store?.setItem(PREFIX + name, JSON.stringify({ start, text } satisfies Draft));
  } catch {
    // There is no room: then it lasts as long as the page.
  }
}

/** Forgets all drafts, as somebody who signs out wants it. */
export function forgetDrafts(store: Store | null): void {
  if (!store) return;
  const names = Array.from({ length: store.length }, (_, at) => store.key(at));
  for (const name of names) if (name?.startsWith(PREFIX)) store.removeItem(name);
}
