/** Calls to the server's API. */

import type { Answer, Body, Params, PostPath } from "./types";

/** One thing that the server says about a call that it refused. */
export interface Problem {
  text: string;
  /** Where in the body, such as `["run_spec", "configuration", "task", "ports", 0]`. */
  place: (string | number)[];
}

/** The server refused a call. */
export class ApiError extends Error {
  override name = "ApiError";
  /** What the call was made with; not to be seen where errors are printed. */
  readonly #token: string | null;
  constructor(
    readonly status: number,
    readonly problems: Problem[],
    readonly code: string | null,
    token: string | null = null,
  ) {
    super(problems.map((problem) => problem.text).join("\n"));
    this.#token = token;
  }

  /** Whether a session with this token is over. An answer to a call that was made with an earlier one says nothing of it. */
  ends(token: string | null): boolean {
    return this.isSignedOut && token !== null && this.#token === token;
  }

  /** Whether the token is not good (any more): unknown, replaced, expired, or its user is not active. */
  get isSignedOut(): boolean {
    return this.status === 401 || (this.status === 403 && this.message === "Invalid token");
  }

  get isNotFound(): boolean {
    return this.status === 404 || this.code === "resource_not_exists" || /not found$/i.test(this.message);
  }
}

/** The server was not reached, or cannot answer now. */
export class ServerLost extends Error {
  override name = "ServerLost";
}

/** The server is there, has too much to do now, and says when to ask again. */
export class TryLater extends Error {
  override name = "TryLater";
  constructor(readonly afterMs: number) {
    super(`The server has too much to do now; it can be asked again in ${Math.ceil(afterMs / 1000)} s.`);
  }
}

/** Sooner than this nothing is asked again, and longer nobody waits. */
const LEAST_WAIT_MS = 1000;
const MOST_WAIT_MS = 60_000;

/** Milliseconds that a `Retry-After` of seconds asks for. Dates, which our server does not send, are taken for the shortest wait. */
function waitOf(retryAfter: string): number {
  const asked = Number(retryAfter) * 1000;
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

async function send(url: string, init: RequestInit, token: string | null): Promise<unknown> {
  const headers: Record<string, string> = { "X-API-VERSION": "latest", ...(init.headers as Record<string, string>) };
  if (token !== null) headers["Authorization"] = `Bearer ${token}`;
  let response: Response;
  try {
    response = await fetch(url, { ...init, headers, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ServerLost("The server cannot be reached.");
  }
  const retryAfter = response.headers.get("Retry-After");
  if (response.status === 503 && retryAfter !== null) throw new TryLater(waitOf(retryAfter));
  if ([502, 503, 504].includes(response.status)) {
    throw new ServerLost(`The server cannot answer now (status ${response.status}).`);
  }
  const text = await response.text().catch((error: unknown) => {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ServerLost("The server's answer broke off.");
  });
  const body = parsed(text);
  if (!response.ok) {
    const { problems, code } = problemsOf(response.status, body ?? null);
    throw new ApiError(response.status, problems, code, token);
  }
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
  return (await send(address(path, params), init, by)) as Answer<P>;
}

/** Calls a route that takes GET. */
export async function get<T>(path: string, params: Record<string, string>, query: Record<string, string>, signal?: AbortSignal): Promise<T> {
  const url = `${address(path, params)}?${new URLSearchParams(query)}`;
  return (await send(url, signal ? { signal } : {}, token())) as T;
}

/** Whether the server answers at all. */
export async function isAlive(): Promise<boolean> {
  return fetch(address("/healthcheck"), { cache: "no-store" }).then(
    (response) => response.ok || response.headers.has("Retry-After"),
    () => false,
  );
}
