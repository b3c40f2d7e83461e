/** Where the page starts. */

import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, ServerLost, useTokenFrom } from "./api/client";
import { serverWasLost } from "./connection";
import { followTheme } from "./preferences";
import { makeRouter } from "./router";
import { session } from "./session";
import "./styles/main.css";

followTheme();
useTokenFrom(session.token);

/** What concerns the whole page: a lost server, a token that is not good any more. */
function onError(error: unknown): void {
  if (error instanceof ServerLost) serverWasLost(client);
  if (error instanceof ApiError && error.isSignedOut && session.token() !== null) session.signOut();
}

const client = new QueryClient({
  queryCache: new QueryCache({ onError }),
  mutationCache: new MutationCache({ onError }),
  defaultOptions: {
    queries: {
      retry: (failures, error) => !(error instanceof ApiError) && failures < 1,
      staleTime: 1000,
      networkMode: "always",
    },
  },
});
const router = makeRouter(client);

// Signed out here or in another tab: sign in, and come back.
session.subscribe(() => {
  if (session.token() !== null) return;
  const { pathname, href } = router.state.location;
  client.clear();
  if (!/^\/(auth|logout)(\/|$)/.test(pathname)) void router.navigate({ to: "/auth/token", search: { to: href, expired: true } as never, replace: true });
});

// Files of a page that was loaded before the server was updated are gone.
globalThis.addEventListener("vite:preloadError", (event) => {
  const key = "dstack.reloaded";
  try {
    if (sessionStorage.getItem(key) === location.href) return;
    sessionStorage.setItem(key, location.href);
  } catch {
    return;
  }
  event.preventDefault();
  location.reload();
});

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
