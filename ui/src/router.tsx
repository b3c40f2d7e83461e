/** Which page is at which path. Each page is fetched when it is first gone to. */

import type { QueryClient } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, lazyRouteComponent, Outlet, redirect } from "@tanstack/react-router";
import { serverUrl } from "./api/client";
import { Empty, Failure, Head, Loading } from "./parts/basic";
import { fetched, Missing, PartMissing } from "./parts/fetched";
import { Shell } from "./parts/shell";
import { session } from "./session";

type Pages = Record<string, () => Promise<Record<string, unknown>>>;

const root = createRootRoute({ component: Outlet, notFoundComponent: NotFound });

/** What only those see who are signed in; others sign in and come back. */
const inside = createRoute({
  getParentRoute: () => root,
  id: "inside",
  component: Shell,
  beforeLoad: ({ location }) => {
    if (session.token() === null) throw redirect({ to: "/auth/token", search: { to: location.href } as never });
  },
});

function NotFound() {
  return (
    <main className="sign-in">
      <div className="card">
        <h1>There is no such page</h1>
        <p>
          <a href={`${serverUrl()}/runs`}>To the runs</a>
        </p>
      </div>
    </main>
  );
}

/** A page from a module that is fetched with it. Where that is gone the page is loaded anew when one goes there, and not when one may. */
function page<M extends Record<string, unknown>>(load: () => Promise<M>, name: string) {
  return lazyRouteComponent((() => fetched(load())) as never, name as never);
}

const pages = {
  signIn: () => import("./pages/sign-in"),
  runs: () => import("./pages/runs"),
  run: () => import("./pages/run"),
  launch: () => import("./pages/launch"),
  offers: () => import("./pages/offers"),
  infra: () => import("./pages/infra"),
  gateways: () => import("./pages/gateways"),
  models: () => import("./pages/models"),
  projects: () => import("./pages/projects"),
  backend: () => import("./pages/backend"),
  costs: () => import("./pages/costs"),
  users: () => import("./pages/users"),
  events: () => import("./pages/events"),
  doctor: () => import("./pages/doctor"),
} satisfies Pages;

const open = (path: string, load: () => Promise<Record<string, unknown>>, name: string) => createRoute({ getParentRoute: () => root, path, component: page(load, name) });
const within = (path: string, load: () => Promise<Record<string, unknown>>, name: string) => createRoute({ getParentRoute: () => inside, path, component: page(load, name) });

/** A page with several views, each at its own path. */
function views(path: string, load: () => Promise<Record<string, unknown>>, name: string, first: string, others: string[]) {
  return [first, ...others].map((view) =>
    createRoute({
      getParentRoute: () => inside,
      path: view === first ? path : `${path}/${view}`,
      component: lazyRouteComponent(async () => {
        const View = (await fetched(load()))[name] as React.ComponentType<{ view: string }>;
        return { default: () => <View view={view} /> };
      }),
    }),
  );
}

const home = createRoute({
  getParentRoute: () => root,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/runs" });
  },
});

const tree = root.addChildren([
  home,
  open("/auth/token", pages.signIn, "SignInPage"),
  open("/auth/$provider/callback", pages.signIn, "CallbackPage"),
  open("/logout", pages.signIn, "SignOutPage"),
  inside.addChildren([
    within("/runs", pages.runs, "RunsPage"),
    within("/runs/launch", pages.launch, "LaunchPage"),
    ...views("/projects/$p/runs/$runId", pages.run, "RunView", "details", ["logs", "metrics", "events", "inspect"]),
    ...views("/projects/$p/runs/$runId/jobs/$jobName", pages.run, "JobView", "details", ["logs", "metrics", "events"]),
    within("/offers", pages.offers, "OffersPage"),
    within("/fleets", pages.infra, "FleetsPage"),
    within("/projects/$p/fleets/add", pages.launch, "AddFleetPage"),
    ...views("/projects/$p/fleets/$id", pages.infra, "FleetView", "details", ["offers", "events", "inspect"]),
    within("/instances", pages.infra, "InstancesPage"),
    ...views("/projects/$p/instances/$id", pages.infra, "InstanceView", "details", ["events", "inspect"]),
    within("/volumes", pages.infra, "VolumesPage"),
    within("/gateways", pages.gateways, "GatewaysPage"),
    within("/projects/$p/gateways/add", pages.launch, "AddGatewayPage"),
    within("/projects/$p/gateways/$name", pages.gateways, "GatewayPage"),
    within("/costs", pages.costs, "CostsPage"),
    within("/models", pages.models, "ModelsPage"),
    within("/projects/$p/models/$runName", pages.models, "ModelPage"),
    within("/projects", pages.projects, "ProjectsPage"),
    within("/projects/add", pages.projects, "CreateProjectPage"),
    within("/projects/$p", pages.projects, "ProjectPage"),
    within("/projects/$p/backends/add", pages.backend, "AddBackendPage"),
    within("/projects/$p/backends/$type", pages.backend, "BackendPage"),
    within("/users", pages.users, "UsersPage"),
    within("/users/add", pages.users, "EditUserPage"),
    ...views("/users/$u", pages.users, "UserView", "settings", ["projects"]),
    within("/users/$u/edit", pages.users, "EditUserPage"),
    within("/events", pages.events, "EventsPage"),
    within("/doctor", pages.doctor, "DoctorPage"),
  ]),
]);

function Failed({ error }: { error: unknown }) {
  if (error instanceof PartMissing) return <Missing />;
  return (
    <>
      <Head title="This page failed" />
      <Failure error={error} />
      <Empty title="The others go on.">
        <button type="button" className="button" onClick={() => globalThis.location.reload()}>
          Load it anew
        </button>
      </Empty>
    </>
  );
}

export function makeRouter(_: QueryClient) {
  return createRouter({
    routeTree: tree,
    basepath: new URL(serverUrl()).pathname,
    defaultPreload: "intent",
    scrollRestoration: true,
    defaultPendingComponent: () => <Loading what="the page" />,
    defaultErrorComponent: Failed,
  });
}
