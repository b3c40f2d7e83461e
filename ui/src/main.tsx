/** Where the page starts. */

import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, post, ServerLost, useTokenFrom } from "./api/client";
import { MOST_WAIT_MS } from "./api/patience";
import { me } from "./api/queries";
import { mayRetry, retryDelay } from "./api/retry";
import { serverWasLost } from "./connection";
import { forgetAfter, tabStorage } from "./logic/kept-draft";
import { startLive } from "./live";
import { followTheme } from "./preferences";
import { makeRouter } from "./router";
import { session } from "./session";
import "./styles/main.css";

followTheme();
useTokenFrom(session.token);

/** What concerns the whole page: a lost server, a token that is not good any more. */
function onError(error: unknown): void {
  if (error instanceof ServerLost) serverWasLost(client);
  if (error instanceof ApiError && error.ends(session.token())) session.expire();
}

const client = new QueryClient({
  queryCache: new QueryCache({ onError }),
  mutationCache: new MutationCache({ onError }),
  defaultOptions: {
    queries: {
      retry: mayRetry,
      retryDelay,
      staleTime: 1000,
      networkMode: "always",
    },
  },
});
const router = makeRouter(client);

/** After another token came, as from another tab: what was read as another user is forgotten. */
async function forgetOthers(): Promise<void> {
  const before = client.getQueryData(me().queryKey);
  // Read, and not done: where it fails, what is shown is forgotten at once.
  const now = await post("/api/users/get_my_user", { signal: AbortSignal.timeout(MOST_WAIT_MS) }).catch(() => undefined);
  if (now === undefined || now.id !== before?.id) await client.resetQueries();
}

const forgetOfOthers = () => forgetAfter(tabStorage(), session.signedOut());
forgetOfOthers();

// Signed out here or in another tab: sign in, and come back.
let token = session.token();
session.subscribe(() => {
  forgetOfOthers();
  const before = token;
  token = session.token();
  if (token !== null) {
    if (before !== null && before !== token) void forgetOthers();
    return;
  }
  const { pathname, href } = router.state.location;
  client.clear();
  if (!/^\/(auth|logout)(\/|$)/.test(pathname)) void router.navigate({ to: "/auth/token", search: { to: href, expired: true } as never, replace: true });
});

startLive(client, onError);

const place = document.getElementById("root");
if (place) {
  createRoot(place).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </StrictMode>,
  );
}
