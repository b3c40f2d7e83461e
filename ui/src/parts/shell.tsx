/** What stands around every page: where one can go, who one is, and whether the server answers. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useRouterState } from "@tanstack/react-router";
import { type ComponentType, Suspense, useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { ApiError } from "../api/client";
import { awaited, subscribeToWaits } from "../api/patience";
import * as queries from "../api/queries";
import { waitedOn } from "../api/retry";
import { askNow, useIsLost } from "../connection";
import { applyTheme, type Theme, usePreference } from "../preferences";
import { opensPalette } from "../logic/keys";
import { complain, dismiss, useToasts } from "../toasts";
import { Alert, Button, Failure, Loading } from "./basic";
import { fetched } from "./fetched";

/** The palette, fetched when it is first opened. Where it cannot be, what is on the page stays. */
type Palette = ComponentType<{ onClose: () => void; isAdmin: boolean }>;

interface Place {
  to: string;
  name: string;
  isForAdmins?: boolean;
}

export const PLACES: Place[] = [
  { to: "/runs", name: "Runs" },
  { to: "/offers", name: "Offers" },
  { to: "/fleets", name: "Fleets" },
  { to: "/instances", name: "Instances" },
  { to: "/volumes", name: "Volumes" },
  { to: "/gateways", name: "Gateways" },
  { to: "/models", name: "Models" },
  { to: "/costs", name: "Costs" },
  { to: "/projects", name: "Projects" },
  { to: "/events", name: "Events" },
  { to: "/users", name: "Users", isForAdmins: true },
  { to: "/doctor", name: "Doctor", isForAdmins: true },
];

/** Which of the places a page belongs to. */
export function placeOf(path: string): string {
  const [, first = "", , kind = ""] = path.split("/");
  if (first === "projects") return { runs: "/runs", fleets: "/fleets", instances: "/instances", gateways: "/gateways", models: "/models" }[kind] ?? "/projects";
  return `/${first}`;
}

export function Shell() {
  const me = useQuery(queries.me());
  const info = useQuery(queries.serverInfo());
  const [isMenuOpen, setMenuOpen] = useState(false);
  const [Palette, setPalette] = useState<Palette | null>(null);
  const openPalette = useCallback(() => {
    fetched(import("./palette")).then((module) => setPalette(() => module.default), complain);
  }, []);
  const path = useRouterState({ select: (state) => state.location.pathname });
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);

  useEffect(() => {
    setMenuOpen(false);
    // Who listens to the page hears where they are.
    if (isFirst.current) isFirst.current = false;
    else main.current?.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
  }, [path]);

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const [place] = event.composedPath();
      if (!opensPalette(event, place instanceof Element ? place : null)) return;
      event.preventDefault();
      openPalette();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [openPalette]);

  const isAdmin = me.data?.global_role === "admin";
  const here = placeOf(path);
  return (
    <div className="frame">
      <a className="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>
        Skip to the page
      </a>
      <div className="bar">
        <Button className="menu-button" aria-expanded={isMenuOpen} aria-controls="places" onClick={() => setMenuOpen(!isMenuOpen)}>
          Menu
        </Button>
        <Link to="/runs" className="brand">dstack</Link>
        <Button kind="plain" className="search-button" onClick={openPalette}>
          Go to… <kbd>/</kbd>
        </Button>
      </div>
      <div className={`side ${isMenuOpen ? "open" : ""}`} id="places">
        <nav aria-label="Places">
          <ul>
            {PLACES.filter((place) => !place.isForAdmins || isAdmin).map((place) => (
              <li key={place.to}>
                <Link to={place.to} className={place.to === here ? "here" : undefined} activeProps={{}} aria-current={place.to === here ? "page" : undefined}>
                  {place.name}
                </Link>
              </li>
            ))}
          </ul>
        </nav>
        <div className="self">
          {me.data && (
            <Link to="/users/$u" params={{ u: me.data.username }} className="who">
              {me.data.username}
              <span className="muted">Settings and tokens</span>
            </Link>
          )}
          <ThemeChoice />
          <Link to="/logout">Sign out</Link>
          <p className="muted version">{info.data?.server_version ? `Server ${info.data.server_version}` : ""}</p>
        </div>
      </div>
      <main id="main" ref={main} tabIndex={-1}>
        <Lost />
        <Waits />
        {me.isPending ? (
          <Loading what="who you are" />
        ) : me.data ? (
          <Suspense fallback={<Loading what="the page" />}>
            <Outlet />
          </Suspense>
        ) : me.error instanceof ApiError && me.error.isSignedOut ? null : (
          <Failure error={me.error} />
        )}
      </main>
      <Toasts />
      {Palette && <Palette onClose={() => setPalette(null)} isAdmin={isAdmin} />}
    </div>
  );
}

function ThemeChoice() {
  const [theme, setTheme] = usePreference("theme", "auto");
  return (
    <label className="theme">
      <span className="muted">Colours</span>
      <select
        value={theme}
        onChange={(event) => {
          setTheme(event.target.value as Theme);
          applyTheme();
        }}
      >
        <option value="auto">As the system</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}

function Lost() {
  const isLost = useIsLost();
  const client = useQueryClient();
  return (
    <div role="status">
      {isLost && (
        <Alert kind="warning" title="The server does not answer">
          What you see may be old. It is asked again every two seconds, and the page goes on by itself.{" "}
          <Button kind="plain" onClick={() => askNow(client)}>
            Ask now
          </Button>
        </Alert>
      )}
    </div>
  );
}

/** What the server said that asks to wait, while something waits for it. */
function Waits() {
  const cache = useQueryClient().getQueryCache();
  const subscribe = useCallback((listener: () => void) => cache.subscribe(listener), [cache]);
  const read = useSyncExternalStore(subscribe, () => waitedOn(cache.getAll()));
  const done = useSyncExternalStore(subscribeToWaits, awaited);
  const error = done ?? read;
  return (
    <div role="status">
      {error && (
        <Alert kind="warning" title="The server asks to wait">
          {error.message} <span className="muted">The page asks again by itself.</span>
        </Alert>
      )}
    </div>
  );
}

function Toasts() {
  const toasts = useToasts();
  return (
    <div className="toasts" role="region" aria-label="Messages" aria-live="polite">
      {toasts.map((toast) => (
        <div key={toast.id} className={`toast ${toast.isError ? "bad" : ""}`}>
          <span>{toast.text}</span>
          <Button kind="plain" aria-label="Close the message" onClick={() => dismiss(toast.id)}>
            ×
          </Button>
        </div>
      ))}
    </div>
  );
}
