import { expect, test } from "vitest";
import { ago, between, duration, exact, exactInZone } from "../src/logic/time";

test("durations have their two largest units", () => {
  expect([0, 0.4, 59.6, 3600, 3660, 90061, 86400 + 59].map(duration)).toEqual(["0s", "0s", "1m", "1h", "1h 1m", "1d 1h", "1d"]);
  expect(duration(-5)).toBe("0s");
});

test("what is long ago, just now and to come", () => {
  const now = Date.parse("2026-03-01T12:00:00Z");
  expect(ago("2026-03-01T11:59:58Z", now)).toBe("just now");
  expect(ago("2026-03-01T09:00:00Z", now)).toBe("3h ago");
  expect(ago("2026-03-01T12:05:00Z", now)).toBe("in 5m");
});

test("what has not ended lasts until now", () => {
  const now = Date.parse("2026-03-01T12:00:30Z");
  expect(between("2026-03-01T12:00:00Z", null, now)).toBe(30);
  expect(between("2026-03-01T12:00:00Z", "2026-03-01T12:00:10Z", now)).toBe(10);
  expect(between("2026-03-01T12:01:00Z", null, now)).toBe(0);
});

test.each(["UTC", "Asia/Kolkata", "America/St_Johns"])("a time that is looked at closely says its zone: %s", (zone) => {
  process.env["TZ"] = zone;
  const time = "2026-03-01T12:00:00Z";
  const shown = exactInZone(time);
  expect(shown.startsWith(exact(time))).toBe(true);
  expect(Date.parse(shown.replace(" ", "T").replace(" ", ""))).toBe(Date.parse(time));
});
