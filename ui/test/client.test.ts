import { QueryClient } from "@tanstack/react-query";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApiError, isAlive, post, serverUrl, ServerLost, TryLater, useTokenFrom } from "../src/api/client";
import { allGateways } from "../src/api/queries";
import { mayRetry, retryDelay } from "../src/api/retry";

let token = "first";
let answers: (asked: Request) => Response | Promise<Response>;

beforeEach(() => {
  token = "first";
  useTokenFrom(() => token);
  vi.stubGlobal("document", { baseURI: "http://server.test/below/" });
  vi.stubGlobal("fetch", async (url: string, init?: RequestInit) => answers(new Request(url, init)));
});
afterEach(() => vi.unstubAllGlobals());

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

test("a server that has too much to do is asked again when it says", async () => {
  const wait = async (retryAfter: string) => {
    answers = () => new Response("busy", { status: 503, headers: { "Retry-After": retryAfter } });
    const error = await whoAmI();
    expect(error).toBeInstanceOf(TryLater);
    expect([0, 4, 5].map((failures) => mayRetry(failures, error))).toEqual([true, true, false]);
    expect(await isAlive()).toBe(true);
    return retryDelay(0, error);
  };
  expect([await wait("7"), await wait("86400"), await wait("0"), await wait("Wed, 21 Oct 2026 07:28:00 GMT")]).toEqual([7000, 60_000, 1000, 1000]);
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
