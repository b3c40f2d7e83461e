import { expect, test } from "vitest";
import { changedSince, ChangedMeanwhile } from "../src/logic/edits";
import { forgetDrafts, keepDraft, keptDraft, type Store } from "../src/logic/kept-draft";
import { opensPalette } from "../src/logic/keys";
import { mayReload } from "../src/logic/reload";

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

test("what is written outlives the page, where it started from the same", () => {
  const store = tab();
  keepDraft(store, "me launch", "type: task", "type: task\nname: x");
  expect(keptDraft(store, "me launch", "type: task")).toBe("type: task\nname: x");
  expect(keptDraft(store, "me launch", "type: service")).toBeNull();
  expect(keptDraft(store, "another launch", "type: task")).toBeNull();
  keepDraft(store, "me launch", "type: task", "type: task");
  expect(store.all.size).toBe(0);
});

test("who signs out leaves no draft", () => {
  const store = tab();
  store.setItem("other", "stays");
  for (const name of ["a", "b", "c"]) keepDraft(store, name, "", "password: x");
  forgetDrafts(store);
  expect([...store.all]).toEqual([["other", "stays"]]);
});

test("without storage, or room in it, a draft lasts as long as the page", () => {
  keepDraft(null, "a", "", "text");
  expect(keptDraft(null, "a", "")).toBeNull();
  const store = tab(10);
  keepDraft(store, "a", "", "longer than there is room for");
  expect(keptDraft(store, "a", "")).toBeNull();
  store.all.set("dstack.draft.a", "no JSON");
  expect(keptDraft(store, "a", "")).toBeNull();
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
