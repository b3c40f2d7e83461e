import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApiError, isAlive, post, serverUrl, ServerLost, TryLater, useTokenFrom } from "../src/api/client";
import { awaited } from "../src/api/patience";
import { allGateways } from "../src/api/queries";
import { mayRetry, retryDelay, waitedOn } from "../src/api/retry";

let token = "first";
let answers: (asked: Request) => Response | Promise<Response>;

beforeEach(() => {
  token = "first";
  useTokenFrom(() => token);
  vi.stubGlobal("document", { baseURI: "http://server.test/below/" });
  vi.stubGlobal("fetch", async (url: string, init?: RequestInit) => answers(new Request(url, init)));
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const refusal = (status: number, msg: string, code: string | null = null) => Response.json({ detail: [{ msg, code }] }, { status });
const whoAmI = () => post("/api/users/get_my_user").then(
  () => null,
  (error: unknown) => error,
);
async function refused(): Promise<ApiError> {
  const error = await whoAmI();
  if (!(error instanceof ApiError)) throw new Error(`not refused: ${String(error)}`);
  return error;
}

test("a refusal ends the session that the call was made in, and no later one", async () => {
  let answer: (response: Response) => void = () => undefined;
  answers = () => new Promise((resolve) => (answer = resolve));
  const late = refused();
  token = "second";
  answer(Response.json({ detail: { msg: "Invalid token", code: null } }, { status: 403 }));
  const error = await late;
  expect([error.ends("first"), error.ends("second"), error.ends(null)]).toEqual([true, false, false]);
  answers = () => new Response("<html>sign in</html>", { status: 401 });
  expect((await refused()).ends("second")).toBe(true);
  answers = () => refusal(403, "Access denied");
  expect((await refused()).ends("second")).toBe(false);
});

test("what a call was made with stands in no error that is printed", async () => {
  token = "do-not-print";
  answers = () => refusal(401, "Unauthorized");
  const error = await refused();
  expect(error.ends("do-not-print")).toBe(true);
  expect(JSON.stringify({ ...error }) + String(error) + Object.getOwnPropertyNames(error).join()).not.toContain("do-not-print");
});

const read = () => post("/api/users/get_my_user", { signal: new AbortController().signal }).then(
  () => null,
  (error: unknown) => error,
);
const busy = (status: number, retryAfter: string | null, detail: unknown = { msg: "The server is busy", code: null }) =>
  Response.json({ detail }, { status, ...(retryAfter !== null && { headers: { "Retry-After": retryAfter } }) });

test("a server that has too much to do is asked again when it says", async () => {
  const wait = async (status: number, retryAfter: string | null) => {
    answers = () => busy(status, retryAfter);
    const error = await read();
    expect(error).toBeInstanceOf(TryLater);
    expect([0, 4, 500].map((failures) => mayRetry(failures, error))).toEqual([true, true, true]);
    return [0, 2, 1000].map((failures) => retryDelay(failures, error));
  };
  for (const status of [429, 503]) {
    expect(await wait(status, "7")).toEqual([7000, 8000, 60_000]);
    expect(await wait(status, "86400")).toEqual([60_000, 60_000, 60_000]);
    expect(await wait(status, "0")).toEqual([1000, 2000, 60_000]);
    expect(await wait(status, "Wed, 21 Oct 2026 07:28:00 GMT")).toEqual([1000, 2000, 60_000]);
    expect(await isAlive()).toBe(true);
  }
  // A proxy that limits calls may not say when.
  expect(await wait(429, null)).toEqual([1000, 2000, 60_000]);
});

test("what the server says of what it lacks is what is shown", async () => {
  answers = () => busy(503, "1", "The disk of the server's database is full: nothing can be stored.");
  expect(String(await read())).toBe("TryLater: The disk of the server's database is full: nothing can be stored.");
  answers = () => busy(429, "60", [{ msg: "Too many failed logins", code: null }]);
  expect(await read()).toMatchObject({ message: "Too many failed logins", status: 429, afterMs: 60_000 });
});

test("what is read waits as long as the server asks, says so, and goes on by itself", async () => {
  vi.useFakeTimers();
  let asked = 0;
  answers = () => (++asked <= 7 ? busy(503, "5", "The database is away") : Response.json({ username: "me" }));
  const client = new QueryClient({ defaultOptions: { queries: { retry: mayRetry, retryDelay, networkMode: "always" } } });
  const observer = new QueryObserver(client, { queryKey: ["who"], queryFn: ({ signal }) => post("/api/users/get_my_user", { signal }) });
  const stop = observer.subscribe(() => undefined);
  await vi.advanceTimersByTimeAsync(4900);
  expect(asked).toBe(1);
  expect(waitedOn(client.getQueryCache().getAll())?.message).toBe("The database is away");
  await vi.advanceTimersByTimeAsync(60_000);
  expect(observer.getCurrentResult().data).toEqual({ username: "me" });
  expect(waitedOn(client.getQueryCache().getAll())).toBeUndefined();
  stop();
  client.clear();
});

test("what somebody does is done once the server looks at it", async () => {
  vi.useFakeTimers();
  let asked = 0;
  answers = () => (++asked <= 2 ? busy(429, "1") : Response.json({ username: "me" }));
  const done = whoAmI();
  await vi.advanceTimersByTimeAsync(900);
  expect([asked, awaited()?.message]).toEqual([1, "The server is busy"]);
  await vi.advanceTimersByTimeAsync(3000);
  expect([await done, asked, awaited()]).toEqual([null, 3, undefined]);
});

test("what somebody does is not done twice, and does not wait without end", async () => {
  vi.useFakeTimers();
  const tries = async (status: number, retryAfter: string, options: { token?: string } = {}) => {
    let asked = 0;
    answers = () => {
      asked += 1;
      return busy(status, retryAfter);
    };
    const failed = post("/api/users/get_my_user", options).catch((error: unknown) => error);
    await vi.advanceTimersByTimeAsync(600_000);
    expect(await failed).toBeInstanceOf(TryLater);
    return asked;
  };
  expect(await tries(429, "1")).toBe(8);
  // The answer may have been lost after it was done.
  expect(await tries(503, "1")).toBe(1);
  expect(await tries(429, "11")).toBe(1);
  // A wrong token is not tried again and again.
  expect(await tries(429, "1", { token: "typed" })).toBe(1);
});

test("what waits is not done any more by who has signed out meanwhile", async () => {
  vi.useFakeTimers();
  let token: string | null = "mine";
  let asked = 0;
  useTokenFrom(() => token);
  answers = () => {
    asked += 1;
    return busy(429, "5");
  };
  const failed = post("/api/users/get_my_user").catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(1000);
  token = null;
  await vi.advanceTimersByTimeAsync(60_000);
  useTokenFrom(() => null);
  expect(await failed).toBeInstanceOf(TryLater);
  expect(asked).toBe(1);
});

test("a server that never answers is given up", async () => {
  vi.useFakeTimers();
  answers = ({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError"))));
  const late = whoAmI();
  await vi.advanceTimersByTimeAsync(119_000);
  expect(vi.getTimerCount()).toBe(1);
  await vi.advanceTimersByTimeAsync(1000);
  expect(String(await late)).toBe("ServerLost: The server has not answered within 2 minutes.");
  const abort = new AbortController();
  const left = post("/api/users/get_my_user", { signal: abort.signal }).catch((error: unknown) => error);
  abort.abort();
  expect(await left).toMatchObject({ name: "AbortError" });
  expect(vi.getTimerCount()).toBe(0);
});

test("a server that is away is asked once more, and one that refuses is not", async () => {
  answers = () => new Response("bad gateway", { status: 502 });
  const away = await whoAmI();
  expect(away).toBeInstanceOf(ServerLost);
  expect([0, 1].map((failures) => mayRetry(failures, away))).toEqual([true, false]);
  expect(await isAlive()).toBe(false);
  answers = () => refusal(400, "no");
  expect(mayRetry(0, await whoAmI())).toBe(false);
});

test("an answer that is none of a dstack server is said to be that", async () => {
  answers = () => new Response("<html>Sign in to the company</html>");
  expect((await refused()).message).toContain("a proxy in between may have answered");
  answers = () => new Response("");
  expect(await post("/api/users/get_my_user")).toBeNull();
  answers = () =>
    new Response(
      new ReadableStream({
        start: (body) => {
          body.enqueue(new TextEncoder().encode('{"half'));
          body.error(new Error("broken off"));
        },
      }),
    );
  expect(await whoAmI()).toBeInstanceOf(ServerLost);
});

test("gateways that cannot be read are not none", async () => {
  const list = (refusals: Record<string, () => Response>) => {
    answers = ({ url }) => refusals[url.split("/")[6] ?? ""]?.() ?? Response.json([{ name: "mine" }]);
    return new QueryClient().fetchQuery({ ...allGateways(["a", "b"]), retry: false }).then(
      (gateways) => gateways.map(({ name }) => name),
      (error: unknown) => error,
    );
  };
  expect(await list({})).toEqual(["mine", "mine"]);
  expect(await list({ b: () => refusal(403, "Access denied") })).toEqual(["mine"]);
  expect(await list({ b: () => refusal(400, "Project b not found", "resource_not_exists") })).toEqual(["mine"]);
  expect(await list({ b: () => refusal(500, "broken") })).toBeInstanceOf(ApiError);
  expect(await list({ b: () => new Response("", { status: 502 }) })).toBeInstanceOf(ServerLost);
  expect(await list({ b: () => refusal(403, "Invalid token") })).toBeInstanceOf(ApiError);
});

test("the server is where the page came from", () => {
  expect(serverUrl()).toBe("http://server.test/below");
});
