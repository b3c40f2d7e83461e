/** Signing in: with a token, or with a provider; and where providers send the browser back to. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { ApiError, post, serverUrl } from "../api/client";
import { Button, Failure, Field, Loading } from "../parts/basic";
import { safePath } from "../logic/filters";
import { forgetDrafts, tabStorage } from "../logic/kept-draft";
import { session } from "../session";

const PROVIDERS: Record<string, string> = { github: "GitHub", google: "Google", okta: "Okta", entra: "Microsoft Entra ID" };
/** Where to go after a provider sent the browser back; kept in this tab only. */
const TARGET = "dstack.signing-in-to";

export function SignInPage() {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const target = safePath(search["to"]);
  const wasExpired = search["expired"] === true;
  const navigate = useNavigate();
  const client = useQueryClient();
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const providers = useQuery({ queryKey: ["providers"], queryFn: ({ signal }) => post("/api/auth/list_providers", { token: null, signal }), staleTime: 60_000 });
  useEffect(() => {
    document.title = "Sign in · dstack";
  }, []);

  const signIn = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await post("/api/users/get_my_user", { token: token.trim() });
      client.clear();
      session.signIn(token.trim());
      await navigate({ href: target, replace: true });
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  const begin = async (name: string) => {
    setError(null);
    try {
      // A provider sends back only to addresses that are registered with it: those of an origin.
      const base = serverUrl() === location.origin ? { base_url: location.origin } : {};
      const answer = await post("/api/auth/{provider}/authorize", { params: { provider: name }, body: base, token: null });
      try {
        sessionStorage.setItem(TARGET, target);
      } catch {
        // Then it goes to the list of runs.
      }
      location.assign(answer.authorization_url);
    } catch (failed) {
      setError(failed);
    }
  };
  const known = (providers.data ?? []).filter((provider) => provider.enabled);
  const isRefused = error instanceof ApiError && error.isSignedOut;
  return (
    <main className="sign-in">
      <form className="card" onSubmit={(event) => void signIn(event)}>
        <h1>Sign in to dstack</h1>
        {wasExpired && <p role="status">Your token is not good any more: it was replaced or has expired. Sign in again to go on where you were.</p>}
        {known.map((provider) => (
          <Button key={provider.name} className="wide" onClick={() => void begin(provider.name)}>
            Go on with {PROVIDERS[provider.name] ?? provider.name}
          </Button>
        ))}
        <Failure error={providers.error} title="It is not known whether one can sign in with a provider" />
        {known.length > 0 && <p className="muted or">or</p>}
        <Field
          label="Token"
          error={isRefused ? "No active user has this token. Is it complete?" : null}
          hint="The server prints the token of its administrator when it starts. Others get theirs from an administrator, or from “dstack login”."
        >
          {(field) => (
            <input {...field} type="password" name="token" value={token} onChange={(event) => setToken(event.target.value)} autoComplete="current-password" spellCheck={false} required autoFocus />
          )}
        </Field>
        {!isRefused && <Failure error={error} />}
        <Button type="submit" kind="primary" className="wide" busy={isBusy}>
          Sign in
        </Button>
      </form>
    </main>
  );
}

/** Where a provider sends the browser back to. A login of a command line goes on to its port. */
export function CallbackPage() {
  const { provider } = useParams({ strict: false }) as { provider: string };
  const navigate = useNavigate();
  const client = useQueryClient();
  const [error, setError] = useState<unknown>(null);
  const isStarted = useRef(false);
  useEffect(() => {
    // A code is good once.
    if (isStarted.current) return;
    isStarted.current = true;
    const query = new URLSearchParams(location.search);
    const finish = async () => {
      const [code, state] = [query.get("code"), query.get("state")];
      if (code === null || state === null) throw new Error(query.get("error_description") ?? query.get("error") ?? "The address of this page is damaged.");
      const next = await post("/api/auth/get_next_redirect", { body: { code, state }, token: null });
      if (next.redirect_url) {
        location.assign(next.redirect_url);
        return;
      }
      const user = await post("/api/auth/{provider}/callback", { params: { provider }, body: { code, state }, token: null });
      let target = "/runs";
      try {
        target = safePath(sessionStorage.getItem(TARGET));
        sessionStorage.removeItem(TARGET);
      } catch {
        // To the list of runs.
      }
      client.clear();
      session.signIn(user.creds.token);
      await navigate({ href: target, replace: true });
    };
    finish().catch(setError);
  }, [provider, navigate, client]);
  return (
    <main className="sign-in">
      <div className="card">
        <h1>Signing in</h1>
        {error ? (
          <>
            <Failure error={error} title="This login cannot be finished" />
            <p>
              <Link to="/auth/token">Begin again</Link>, or run <code>dstack login</code> for a command line.
            </p>
          </>
        ) : (
          <Loading what="your user" />
        )}
      </div>
    </main>
  );
}

export function SignOutPage() {
  const client = useQueryClient();
  const navigate = useNavigate();
  useEffect(() => {
    session.signOut();
    // Also where the browser keeps nothing for other tabs.
    forgetDrafts(tabStorage());
    client.clear();
    void navigate({ to: "/auth/token", replace: true });
  }, [client, navigate]);
  return null;
}
