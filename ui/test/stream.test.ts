import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApiError, ServerLost } from "../src/api/errors";
import { type Asked, followChanges, type Frame } from "../src/api/stream";

let request: Request | undefined;
/** What the server sends; unset where it refuses. */
let body: ReadableStreamDefaultController<Uint8Array>;
let answer: () => Response;
let isCancelled = false;

beforeEach(() => {
  vi.useFakeTimers();
  isCancelled = false;
  vi.stubGlobal("document", { baseURI: "http://server.test/below/" });
  answer = () => new Response(new ReadableStream({ start: (controller) => void (body = controller) }), { headers: { "Content-Type": "text/event-stream; charset=utf-8" } });
  vi.stubGlobal("fetch", async (url: string, init?: RequestInit) => {
    request = new Request(url, init);
    init?.signal?.addEventListener("abort", () => {
      isCancelled = true;
      body?.error(new DOMException("aborted", "AbortError"));
    });
    return answer();
  });
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});
const pass = (ms: number) => vi.advanceTimersByTimeAsync(ms);
const send = async (text: string) => {
  body.enqueue(new TextEncoder().encode(text));
  await pass(0);
};

function following(asked: Partial<Asked> = {}) {
  const frames: Frame[] = [];
  const abort = new AbortController();
  const ended = { how: "not" as unknown };
  followChanges({ token: "token", run: null, after: null, ...asked }, (frame) => frames.push(frame), abort.signal).then(
    () => (ended.how = "well"),
    (error: unknown) => (ended.how = error),
  );
  return { frames, abort, ended };
}

test("frames are heard as they come, however they are cut", async () => {
  const { frames, ended } = following({ run: "r&1", after: "5f0c-3" });
  await pass(0);
  expect([request?.url, request?.headers.get("Authorization"), request?.headers.get("Last-Event-ID"), request?.headers.get("Accept")]).toEqual([
    "http://server.test/below/api/changes/follow?run_id=r%261",
    "Bearer token",
    "5f0c-3",
    "text/event-stream",
  ]);
  const bytes = new TextEncoder().encode('id: 5f0c-4\nevent: hello\ndata: {}\n\n: quiet\n\nid: 5f0c-5\r\nevent: changes\r\ndata: {"é":\r\ndata: 1}\r\n\r\ndata: bare\n\n');
  for (const byte of bytes) body.enqueue(Uint8Array.of(byte));
  await pass(0);
  expect(frames).toEqual([
    { event: "hello", data: "{}", id: "5f0c-4" },
    { event: "changes", data: '{"é":\n1}', id: "5f0c-5" },
    { event: "message", data: "bare", id: null },
  ]);
  body.close();
  await pass(0);
  expect([ended.how, vi.getTimerCount()]).toEqual(["well", 0]);
});

test("a connection by which nothing comes is taken for dead, and a comment keeps it", async () => {
  const { ended } = following();
  await pass(0);
  for (let times = 0; times < 20; times += 1) {
    await pass(30_000);
    await send(": still here\n\n");
  }
  expect(ended.how).toBe("not");
  await pass(39_000);
  expect(ended.how).toBe("not");
  await pass(2000);
  expect(ended.how).toBeInstanceOf(ServerLost);
  expect([isCancelled, vi.getTimerCount()]).toEqual([true, 0]);
});

test("what is left is closed, and says nothing", async () => {
  const { abort, ended } = following();
  await pass(0);
  await send("id: 1\nevent: hello\ndata: {}\n\n");
  abort.abort();
  await pass(0);
  expect([isCancelled, vi.getTimerCount(), ended.how instanceof ServerLost]).toEqual([true, 0, false]);
});

test("a connection that breaks off is a server that was lost; a refusal is one", async () => {
  const broken = following();
  await pass(0);
  body.error(new TypeError("network error"));
  await pass(0);
  expect(broken.ended.how).toBeInstanceOf(ServerLost);
  answer = () => Response.json({ detail: "Not found" }, { status: 404 });
  const unknown = following();
  await pass(0);
  expect(unknown.ended.how).toMatchObject({ name: "ApiError", status: 404 });
  // A proxy that answers in its place.
  answer = () => new Response("<html>", { headers: { "Content-Type": "text/html" } });
  const page = following();
  await pass(0);
  expect(page.ended.how).toBeInstanceOf(ApiError);
  expect(vi.getTimerCount()).toBe(0);
});
