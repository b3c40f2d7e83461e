import { expect, test, vi } from "vitest";
import { changedSince, ChangedMeanwhile } from "../src/logic/edits";
import { draftName, forgetAfter, forgetDrafts, hasDraft, keepDraft, keptDraft, type Store } from "../src/logic/kept-draft";
import { opensPalette } from "../src/logic/keys";
import { mayReload } from "../src/logic/reload";
import { keyOf, searchOf, type Start, startOf } from "../src/logic/start";
import { session } from "../src/session";

const RUN = "11111111-2222-4333-8444-555555555555";

/** Storage of a tab, with room for so many characters. */
function tab(room = 1000): Store & { all: Map<string, string> } {
  const all = new Map<string, string>();
  return {
    all,
    getItem: (key) => all.get(key) ?? null,
    setItem: (key, value) => {
      if (value.length > room) throw new DOMException("no room", "QuotaExceededError");
      all.set(key, value);
    },
    removeItem: (key) => void all.delete(key),
    key: (at) => [...all.keys()][at] ?? null,
    get length() {
      return all.size;
    },
  };
}

test("what is written outlives the page, until it says what it started from", () => {
  const store = tab();
  keepDraft(store, "a", "type: task", "type: task\nname: x");
  expect(keptDraft(store, "a")).toBe("type: task\nname: x");
  keepDraft(store, "a", "type: task", "type: task");
  expect(store.all.size).toBe(0);
});

test("it is known who has begun something", () => {
  const store = tab();
  store.setItem("other", "x");
  keepDraft(store, draftName("me", "Launch", "a"), "", "type: task");
  expect([hasDraft(store, "me"), hasDraft(store, "m"), hasDraft(store, "you"), hasDraft(null, "me")]).toEqual([true, false, false, false]);
});

test("what started from something else, elsewhere or by another user is another draft", () => {
  const store = tab();
  const names = [
    draftName("me", "Launch", keyOf({ kind: "template", name: "task" })),
    draftName("me", "Launch", keyOf({ kind: "template", name: "service" })),
    draftName("me", "Launch", keyOf({ kind: "project's template", name: "task" })),
    draftName("me", "Launch", keyOf({ kind: "run", project: "main", id: RUN })),
    draftName("me", "Launch", keyOf({ kind: "run", project: "other", id: RUN })),
    draftName("me", "Launch", keyOf({ kind: "text", yaml: "type: task" })),
    draftName("me", "Add fleet", "fleet"),
    draftName("you", "Launch", keyOf({ kind: "template", name: "task" })),
  ];
  names.forEach((name, at) => keepDraft(store, name, "", `draft ${at}`));
  expect(names.map((name) => keptDraft(store, name))).toEqual(names.map((_, at) => `draft ${at}`));
});

test("a start stands in the address, and the text of a run does not", () => {
  const templates = ["task", "service"];
  const starts: Start[] = [{ kind: "template", name: "service" }, { kind: "project's template", name: "7" }, { kind: "run", project: "main", id: RUN }, { kind: "text", yaml: "type: task" }];
  for (const start of starts) expect(startOf(searchOf(start), templates)).toEqual(start);
  expect(searchOf({ kind: "run", project: "main", id: RUN })).toEqual({ from: `main/${RUN}` });
  // As the address is read: names of digits are numbers.
  expect(startOf({ template: 7 }, templates)).toEqual({ kind: "project's template", name: "7" });
  for (const nothing of [{}, { kind: "constructor" }, { from: "../x" }, { from: `a/b/${RUN}` }, { from: 1, yaml: null, template: {} }]) {
    expect(startOf(nothing, templates), JSON.stringify(nothing)).toEqual({ kind: "template", name: "task" });
  }
});

test("who signs out leaves no draft", () => {
  const store = tab();
  store.setItem("other", "stays");
  for (const name of ["a", "b", "c"]) keepDraft(store, name, "", "password: x");
  forgetDrafts(store);
  expect([...store.all]).toEqual([["other", "stays"]]);
});

test("who signs out in one tab leaves no draft in another, also where that one is brought back later", () => {
  const store = tab();
  const write = () => keepDraft(store, "a", "", "password: x");
  write();
  forgetAfter(store, null);
  expect(keptDraft(store, "a")).toBe("password: x");
  forgetAfter(store, "2026-03-01");
  expect(keptDraft(store, "a")).toBeNull();
  // What was written since stays, also where the token expires, until somebody signs out again.
  write();
  forgetAfter(store, "2026-03-01");
  expect(keptDraft(store, "a")).toBe("password: x");
  forgetAfter(store, "2026-03-02");
  expect(keptDraft(store, "a")).toBeNull();
  forgetAfter(null, "2026-03-02");
});

test("a session that expires is noted as no signing out", () => {
  const kept = tab();
  vi.stubGlobal("localStorage", kept);
  session.signIn("token");
  session.expire();
  expect([session.token(), session.signedOut()]).toEqual([null, null]);
  let heard: unknown;
  session.signIn("token");
  vi.stubGlobal("addEventListener", () => undefined);
  vi.stubGlobal("removeEventListener", () => undefined);
  const stop = session.subscribe(() => (heard = [session.token(), session.signedOut() !== null]));
  session.signOut();
  expect(heard).toEqual([null, true]);
  stop();
  vi.unstubAllGlobals();
});

test("without storage, or room in it, a draft lasts as long as the page", () => {
  keepDraft(null, "a", "", "text");
  expect(keptDraft(null, "a")).toBeNull();
  const store = tab(10);
  keepDraft(store, "a", "", "longer than there is room for");
  expect(keptDraft(store, "a")).toBeNull();
  forgetAfter(tab(0), "2026-03-01");
});

test("what somebody else has changed meanwhile is named", () => {
  const before = { email: "a@x.org", active: true, ssh: [1] };
  expect(changedSince(before, { ...before, ssh: [1] }, ["email", "active", "ssh"])).toEqual([]);
  expect(changedSince(before, { email: "b@x.org", active: false, ssh: [1] }, ["email", "ssh"])).toEqual(["email"]);
  expect(new ChangedMeanwhile("leo", ["email"]).message).toContain("leo meanwhile (email), so nothing was saved");
});

test("the page loads itself anew once, and not again soon", () => {
  const store = tab();
  expect([0, 1000, 59_000, 60_000, 61_000].map((now) => mayReload(store, now))).toEqual([true, false, false, true, false]);
  expect(mayReload(null, 0)).toBe(false);
  expect(mayReload(tab(0), 0)).toBe(false);
});

test("a letter is a letter where somebody types", () => {
  const pressed = { key: "/", ctrlKey: false, metaKey: false, defaultPrevented: false };
  /** An element that these tags and attributes lie around. */
  const inside = (...around: string[]) => ({ closest: (selector: string) => selector.split(", ").some((each) => around.includes(each)) });
  expect(opensPalette(pressed, inside("body"))).toBe(true);
  expect(opensPalette(pressed, null)).toBe(true);
  for (const around of ["input", "textarea", "select", "[contenteditable]"]) expect(opensPalette(pressed, inside(around)), around).toBe(false);
  expect(opensPalette({ ...pressed, key: "k" }, inside("body"))).toBe(false);
  expect(opensPalette({ ...pressed, key: "k", ctrlKey: true }, inside("[contenteditable]"))).toBe(true);
  expect(opensPalette({ ...pressed, key: "k", metaKey: true, defaultPrevented: true }, inside("[contenteditable]"))).toBe(false);
});
