/** What somebody has written and not applied yet, kept by the tab: it outlives loading the page anew and signing in again. */

const PREFIX = "dstack.draft.";
/** Which signing out the drafts of this tab have seen. */
const SEEN = "dstack.signed-out-seen";

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

/** The name of what a user writes in a place, having started from something. */
export function draftName(user: string, place: string, start: string): string {
  return JSON.stringify([user, place, start]);
}

/** The draft of this name. */
export function keptDraft(store: Store | null, name: string): string | null {
  try {
    return store?.getItem(PREFIX + name) ?? null;
  } catch {
    return null;
  }
}

/** Whether a user has begun to write something in this tab. */
export function hasDraft(store: Store | null, user: string): boolean {
  if (!store) return false;
  const names = Array.from({ length: store.length }, (_, at) => store.key(at) ?? "");
  return names.some((name) => name.startsWith(`${PREFIX}${JSON.stringify([user]).slice(0, -1)},`));
}

/** Keeps a draft, or forgets it where it says what it started from. */
export function keepDraft(store: Store | null, name: string, start: string, text: string): void {
  try {
    if (text === start) store?.removeItem(PREFIX + name);
    else store?.setItem(PREFIX + name, text);
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

/**
 * Forgets the drafts of a tab that has not seen this signing out: one that was open beside it, was closed, or is brought back by
 * the browser. Unset where nobody has signed out.
 */
export function forgetAfter(store: Store | null, signedOut: string | null): void {
  if (!store || signedOut === null || store.getItem(SEEN) === signedOut) return;
  forgetDrafts(store);
  try {
    store.setItem(SEEN, signedOut);
  } catch {
    // Then they are forgotten once more.
  }
}
