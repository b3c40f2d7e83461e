/** How a call may fail. */

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

/**
 * The server is there, cannot do this now, and says when to ask again: with 429 where there is too much to do, with 503 where
 * something that it needs is away or full. What it says of that is the message.
 */
export class TryLater extends Error {
  override name = "TryLater";
  constructor(
    message: string,
    readonly status: number,
    readonly afterMs: number,
  ) {
    super(message);
  }

  /** Whether the call was refused before anything was done, so that nothing can be done twice. */
  get isUntouched(): boolean {
    return this.status === 429;
  }
}
