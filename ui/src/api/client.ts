/** Calls to the server's API. */

import { ApiError, type Problem, ServerLost, TryLater } from "./errors";
import { MOST_WAIT_MS, patiently } from "./patience";
import type { Answer, Body, Params, PostPath } from "./types";

export { ApiError, type Problem, ServerLost, TryLater } from "./errors";

/** Sooner than this nothing is asked again. */
const LEAST_WAIT_MS = 1000;

/** Longer than this no answer is waited for. */
const MOST_ANSWER_MS = 120_000;
/** Whether the server answers at all is known sooner. */
const MOST_HEALTH_MS = 10_000;

/** Milliseconds that a `Retry-After` of seconds asks for. Where it is missing, or a date, which our server does not send, it is the shortest wait. */
function waitOf(retryAfter: string | null): number {
  const asked = Number(retryAfter ?? 0) * 1000;
  return Number.isNaN(asked) ? LEAST_WAIT_MS : Math.min(MOST_WAIT_MS, Math.max(LEAST_WAIT_MS, asked));
}

/** The place that the server is at: where the page was served from, below whichever path. */
export function serverUrl(): string {
  const base = document.baseURI;
  let end = base.length;
  while (base[end - 1] === "/") end -= 1;
  return base.slice(0, end);
}

/** Fills names in a path, and makes it an address. */
export function address(path: string, params: Record<string, string> = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(params[name] ?? ""));
  return serverUrl() + filled;
}

/** What the server says in the body of a refusal, in the shapes of its API. */
export function problemsOf(status: number, body: unknown): { problems: Problem[]; code: string | null } {
  const record = (value: unknown) => (typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {});
  const one = (value: unknown): Problem => {
    const item = record(value);
    const loc = Array.isArray(item["loc"]) ? (item["loc"] as (string | number)[]) : [];
    const fields = Array.isArray(item["fields"]) ? (item["fields"] as string[]) : [];
    const place = loc[0] === "body" ? loc.slice(1) : loc.length > 0 ? loc : fields;
    return { text: String(item["msg"] ?? value), place };
  };
  const { detail, msg, code } = record(body);
  if (Array.isArray(detail)) {
    return { problems: detail.map(one), code: (record(detail[0])["code"] as string | undefined) ?? null };
  }
  if (typeof detail === "string") return { problems: [{ text: detail, place: [] }], code: null };
  if (detail !== undefined) return { problems: [one(detail)], code: null };
  if (typeof msg === "string") return { problems: [{ text: msg, place: [] }], code: (code as string | null) ?? null };
  return { problems: [{ text: `The server answered with status ${status}.`, place: [] }], code: null };
}

/** Sends a call, and gives up where no answer comes. */
async function send(url: string, init: RequestInit, token: string | null): Promise<unknown> {
  const abort = new AbortController();
  const cancel = () => abort.abort();
  const { signal } = init;
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    cancel();
  }, MOST_ANSWER_MS);
  signal?.addEventListener("abort", cancel);
  if (signal?.aborted) cancel();
  try {
    return await answered(url, { ...init, signal: abort.signal }, token);
  } catch (error) {
    if (isLate) throw new ServerLost(`The server has not answered within ${MOST_ANSWER_MS / 60_000} minutes.`);
    throw error;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", cancel);
  }
}

/** Asks, and gives the answer as it begins; fails where the server refuses, or does not answer. */
async function asked(url: string, init: RequestInit, token: string | null): Promise<Response> {
  const headers: Record<string, string> = { "X-API-VERSION": "latest", ...(init.headers as Record<string, string>) };
  if (token !== null) headers["Authorization"] = `Bearer ${token}`;
  let response: Response;
  try {
    response = await fetch(url, { ...init, headers, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ServerLost("The server cannot be reached.");
  }
  if (response.ok) return response;
  const { status } = response;
  const retryAfter = response.headers.get("Retry-After");
  const asksToWait = status === 429 || (status === 503 && retryAfter !== null);
  if ([502, 503, 504].includes(status) && !asksToWait) throw new ServerLost(`The server cannot answer now (status ${status}).`);
  const { problems, code } = problemsOf(status, parsed(await textOf(response)) ?? null);
  const refusal = new ApiError(status, problems, code, token);
  throw asksToWait ? new TryLater(refusal.message, status, waitOf(retryAfter)) : refusal;
}

function textOf(response: Response): Promise<string> {
  return response.text().catch((error: unknown) => {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ServerLost("The server's answer broke off.");
  });
}

async function answered(url: string, init: RequestInit, token: string | null): Promise<unknown> {
  const response = await asked(url, init, token);
  const body = parsed(await textOf(response));
  if (body === undefined) throw new ApiError(response.status, [{ text: NO_JSON, place: [] }], null, token);
  return body;
}

/** What those see whose calls end at a proxy, most often one that wants them to sign in again. */
const NO_JSON = "The answer is not one of a dstack server: a proxy in between may have answered in its place, such as one to sign in at. Load the page anew.";

/** What a body says; unset where it is no JSON. */
function parsed(text: string): unknown {
  if (text === "") return null;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

let token: () => string | null = () => null;

/** Where calls get their token from. */
export function useTokenFrom(source: () => string | null): void {
  token = source;
}

interface Options<P extends PostPath> {
  params?: Params<P>;
  body?: Body<P>;
  signal?: AbortSignal;
  /** Another token than the session's. */
  token?: string | null;
}

/** Calls a route of the table. */
export async function post<P extends PostPath>(path: P, options: Options<P> = {}): Promise<Answer<P>> {
  const { params, body, signal } = options;
  const init: RequestInit = { method: "POST" };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "Content-Type": "application/json" };
  }
  const by = options.token === undefined ? token() : options.token;
  const call = () => send(address(path, params), init, by);
  // What is read is asked for again by who shows it, and says so meanwhile; who signs in decides themselves.
  const isAction = signal === undefined && options.token === undefined;
  // Whoever has signed out meanwhile, or in as somebody else, does not do it any more.
  return (await (isAction ? patiently(call, () => token() === by) : call())) as Answer<P>;
}

/** Calls a route that takes GET. */
export async function get<T>(path: string, params: Record<string, string>, query: Record<string, string>, signal?: AbortSignal): Promise<T> {
  const url = `${address(path, params)}?${new URLSearchParams(query)}`;
  return (await send(url, signal ? { signal } : {}, token())) as T;
}

/** Opens a route that answers with events for as long as it is listened to. */
export async function open(path: string, query: Record<string, string>, headers: Record<string, string>, token: string | null, signal: AbortSignal): Promise<ReadableStream<Uint8Array>> {
  const response = await asked(`${address(path)}?${new URLSearchParams(query)}`, { headers: { Accept: "text/event-stream", ...headers }, signal }, token);
  const isStream = response.headers.get("Content-Type")?.startsWith("text/event-stream") === true;
  if (response.body && isStream) return response.body;
  void response.body?.cancel();
  throw new ApiError(response.status, [{ text: NO_JSON, place: [] }], null, token);
}

/** Whether the server answers at all. */
export async function isAlive(): Promise<boolean> {
  return fetch(address("/healthcheck"), { cache: "no-store", signal: AbortSignal.timeout(MOST_HEALTH_MS) }).then(
    (response) => response.ok || response.headers.has("Retry-After"),
    () => false,
  );
}
