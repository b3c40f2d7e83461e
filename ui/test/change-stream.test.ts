import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ChangeStream, pauseAfter } from "../src/api/change-stream";
import { ApiError, ServerLost, TryLater } from "../src/api/errors";
import type { Asked, Frame } from "../src/api/stream";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());
const pass = (ms: number) => vi.advanceTimersByTimeAsync(ms);
const refused = (status: number, text = "no") => new ApiError(status, [{ text, place: [] }], null, "token");
const frame = (event: string, id: string | null, data = "{}"): Frame => ({ event, id, data });

/** A connection as the server has it. */
interface Connection {
  asked: Asked;
  isOpen: boolean;
  send: (frame: Frame) => void;
  end: (error?: unknown) => void;
}

function tab() {
  const connections: Connection[] = [];
  const heard: unknown[] = [];
  /** What comes of those that are opened next: they end with it at once; without it they go on. */
  let refusal: unknown;
  const follow = (asked: Asked, hear: (frame: Frame) => void, signal: AbortSignal) =>
    new Promise<void>((resolve, reject) => {
      const connection: Connection = { asked, isOpen: true, send: hear, end: (error) => ended(() => (error === undefined ? resolve() : reject(error))) };
      const close = () => ended(resolve);
      const ended = (how: () => void) => {
        connection.isOpen = false;
        signal.removeEventListener("abort", close);
        how();
      };
      signal.addEventListener("abort", close);
      connections.push(connection);
      if (refusal !== undefined) connection.end(refusal);
    });
  const stream = new ChangeStream(follow, {
    tells: (is) => heard.push(is ? "tells" : "is silent"),
    begins: () => heard.push("begins"),
    changed: (changes) => heard.push(changes.map(({ kind }) => kind).join()),
    missed: () => heard.push("missed"),
    failed: (error) => heard.push(`failed: ${(error as Error).message}`),
  });
  const last = () => {
    const connection = connections.at(-1);
    if (!connection) throw new Error("nothing was asked");
    return connection;
  };
  return { stream, connections, last, heard: () => heard.splice(0), refuse: (error: unknown) => (refusal = error) };
}
const MINE = { token: "token", isSeen: true, run: null };

test("who is signed in and looks is told of changes, and nobody else", async () => {
  const { stream, connections, last, heard } = tab();
  stream.want({ ...MINE, token: null });
  stream.want({ ...MINE, isSeen: false });
  await pass(60_000);
  expect(connections).toEqual([]);
  stream.want(MINE);
  expect(last().asked).toEqual({ token: "token", run: null, after: null });
  last().send(frame("hello", "5f0c-1"));
  last().send(frame("changes", "5f0c-2", '{"changes":[{"kind":"run","id":"a"},{"kind":"moon"}]}'));
  last().send(frame("unheard-of", "5f0c-3"));
  expect(heard()).toEqual(["tells", "begins", "run,moon"]);
  stream.want({ ...MINE, token: null });
  expect([heard(), last().isOpen, connections.length]).toEqual([["is silent"], false, 1]);
  // What is still under way is not heard any more.
  last().send(frame("changes", "5f0c-4", '{"changes":[{"kind":"run"}]}'));
  expect(heard()).toEqual([]);
});

test("a tab that nobody sees leaves its connection, and goes on where it was", async () => {
  const { stream, last, heard, connections } = tab();
  stream.want(MINE);
  last().send(frame("hello", "5f0c-1"));
  last().send(frame("changes", "5f0c-9"));
  heard();
  stream.want({ ...MINE, isSeen: false });
  await pass(600_000);
  expect([heard(), last().isOpen, connections.length]).toEqual([[], false, 1]);
  stream.want(MINE);
  expect(last().asked.after).toBe("5f0c-9");
  last().send(frame("hello", "5f0c-20"));
  // All that came meanwhile was told: nothing is to be read again.
  expect(heard()).toEqual([]);
});

test("where the server cannot tell what came meanwhile, all is read again", async () => {
  const { stream, last, heard } = tab();
  stream.want(MINE);
  last().send(frame("hello", "5f0c-1"));
  last().send(frame("reset", "5f0c-7"));
  expect(heard()).toEqual(["tells", "begins", "missed"]);
  last().end();
  await pass(1000);
  expect(last().asked.after).toBe("5f0c-7");
  last().send(frame("reset", "77aa-1"));
  expect(heard()).toEqual(["missed"]);
});

test("a connection that ends is replaced at once, and nobody has to ask meanwhile", async () => {
  const { stream, last, heard, connections } = tab();
  stream.want(MINE);
  for (let times = 0; times < 20; times += 1) {
    last().send(frame("hello", `a-${times}`));
    await pass(60_000);
    last().end(times % 2 ? new ServerLost("broke off") : undefined);
    await pass(300);
    expect(connections).toHaveLength(times + 2);
  }
  last().send(frame("hello", "a-99"));
  await pass(10_000);
  expect(heard()).toEqual(["tells", "begins"]);
});

test("while no connection comes about, what is shown is asked for; pauses grow, and end by themselves or when the server is found", async () => {
  const { stream, last, heard, connections, refuse } = tab();
  stream.want(MINE);
  last().send(frame("hello", "a-1"));
  await pass(20_000);
  refuse(new ServerLost("away"));
  last().end(new ServerLost("broke off"));
  await pass(300);
  expect(heard()).toEqual(["tells", "begins", "is silent", "failed: away"]);
  await pass(600_000);
  // With pauses of 15 s at most, and half of that at least.
  expect(connections.length).toBeGreaterThan(40);
  expect(connections.length).toBeLessThan(90);
  refuse(undefined);
  const { length } = connections;
  stream.tryNow();
  await pass(0);
  expect(connections).toHaveLength(length + 1);
  heard();
  last().send(frame("hello", "a-2"));
  expect(heard()).toEqual(["tells"]);
});

test("a connection that comes about and does not last is not tried without pauses", async () => {
  const { stream, last, connections, heard } = tab();
  stream.want(MINE);
  for (let at = 0; at < 600; at += 1) {
    if (last().isOpen) {
      last().send(frame("hello", `a-${at}`));
      last().end();
    }
    await pass(1000);
  }
  expect(connections.length).toBeGreaterThan(40);
  expect(connections.length).toBeLessThan(90);
  // Between them, what is shown is asked for.
  expect(heard().slice(0, 5)).toEqual(["tells", "begins", "is silent", "tells", "is silent"]);
});

test("a connection that does not come about is not waited for for long", async () => {
  const { stream, last, heard } = tab();
  stream.want(MINE);
  last().send(frame("hello", "a-1"));
  stream.want({ ...MINE, isSeen: false });
  stream.want(MINE);
  heard();
  await pass(1900);
  expect(heard()).toEqual([]);
  await pass(200);
  expect(heard()).toEqual(["is silent"]);
  last().send(frame("hello", "a-1"));
  expect(heard()).toEqual(["tells"]);
});

test("a server that does not know of it is left alone", async () => {
  for (const error of [refused(404), refused(405), refused(200)]) {
    const { stream, heard, connections, refuse } = tab();
    refuse(error);
    stream.want(MINE);
    await pass(599_000);
    expect([connections.length, heard()], String(error.status)).toEqual([1, ["failed: no"]]);
    // It may be another one by then.
    await pass(2000);
    expect(connections).toHaveLength(2);
    stream.want({ ...MINE, token: null });
    expect(vi.getTimerCount()).toBe(0);
  }
});

test("a server that asks to wait is waited for", async () => {
  const { stream, connections, refuse } = tab();
  refuse(new TryLater("busy", 429, 20_000));
  stream.want(MINE);
  await pass(19_900);
  expect(connections).toHaveLength(1);
  await pass(200);
  expect(connections).toHaveLength(2);
});

test("the run of which output is shown is named, unless the server refuses that", async () => {
  const { stream, last, connections, refuse, heard } = tab();
  stream.want(MINE);
  last().send(frame("hello", "a-5"));
  heard();
  stream.want({ ...MINE, run: "r" });
  expect(connections.map(({ asked, isOpen }) => [asked.run, asked.after, isOpen])).toEqual([
    [null, null, false],
    ["r", "a-5", true],
  ]);
  refuse(refused(404, "Run not found"));
  stream.want({ ...MINE, run: "gone" });
  refuse(undefined);
  await pass(0);
  last().send(frame("hello", "a-6"));
  await pass(5000);
  expect([last().asked, heard()]).toEqual([{ token: "token", run: null, after: "a-5" }, []]);
});

test("another user does not go on where one was", async () => {
  const { stream, last } = tab();
  stream.want(MINE);
  last().send(frame("hello", "a-5"));
  stream.want({ ...MINE, token: "another" });
  expect(last().asked).toEqual({ token: "another", run: null, after: null });
});

test("a token that is not good any more is told, and with the run nothing is tried twice", async () => {
  const { stream, connections, heard, refuse } = tab();
  refuse(refused(401));
  stream.want({ ...MINE, run: "r" });
  await pass(60_000);
  expect([connections.length, heard()]).toEqual([1, ["failed: no"]]);
});

test("those that were cut off together do not come back together", () => {
  const first = [0, 0.5, 1].map((random) => pauseAfter(1, new ServerLost("away"), random));
  expect(first).toEqual([125, 187.5, 250]);
  expect([2, 3, 20].map((failures) => pauseAfter(failures, null, 1))).toEqual([500, 1000, 15_000]);
});
