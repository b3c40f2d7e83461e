/** Gateways of all projects, and one of them. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { ApiError, post } from "../api/client";
import * as queries from "../api/queries";
import type { Gateway } from "../api/types";
import { dstack } from "../logic/cli";
import { rightsIn } from "../logic/rights";
import { Alert, Empty, Facts, Failure, Head, Loading, Section, Status, Time } from "../parts/basic";
import { Action, CliButton } from "../parts/dialog";
import { FilterBar, useFilters } from "../parts/filters";
import { Inspect } from "../parts/inspect";
import { type Column, Table } from "../parts/table";
import { NotThere } from "./run";

export const GATEWAY_COLUMNS: Column<Gateway>[] = [
  {
    name: "Name",
    cell: (gateway) => (
      <Link to="/projects/$p/gateways/$name" params={{ p: gateway.project_name, name: gateway.name }} className="name">
        {gateway.name}
      </Link>
    ),
  },
  {
    name: "Status",
    cell: (gateway) => (
      <>
        <Status text={gateway.status} />
        {gateway.status_message && <span className="sub bad">{gateway.status_message}</span>}
      </>
    ),
  },
  {
    name: "Project",
    cell: (gateway) => (
      <Link to="/projects/$p" params={{ p: gateway.project_name }}>
        {gateway.project_name}
      </Link>
    ),
  },
  { name: "Backend", cell: (gateway) => `${gateway.configuration.backend} ${gateway.configuration.region}` },
  { name: "Domain", cell: (gateway) => gateway.wildcard_domain ?? "" },
  { name: "Host", cell: (gateway) => gateway.hostname ?? gateway.replicas.map((replica) => replica.hostname).filter(Boolean).join(", "), isMinor: true },
  { name: "Default", cell: (gateway) => (gateway.default ? "✓" : ""), isMinor: true },
  { name: "Created", cell: (gateway) => <Time at={gateway.created_at} />, isMinor: true },
];

export function GatewaysPage() {
  const [filters, set] = useFilters("gateways");
  const projects = useQuery(queries.projects());
  const names = filters.project ? [filters.project] : (projects.data ?? []).map((each) => each.project_name);
  const query = useQuery({ ...queries.allGateways(names), enabled: projects.isSuccess });
  const target = filters.project ?? names.at(-1);
  const me = useQuery(queries.me());
  const project = useQuery({ ...queries.project(target ?? ""), enabled: target !== undefined });
  const mayAdd = project.data && me.data ? rightsIn(project.data, me.data).manageGateways : false;
  return (
    <>
      <Head title="Gateways">
        <CliButton text={dstack(["gateway", "list"], filters.project ?? "main")} />
        {target && mayAdd && (
          <Link to="/projects/$p/gateways/add" params={{ p: target }} className="button primary">
            Add gateway
          </Link>
        )}
      </Head>
      <FilterBar filters={filters} set={set} />
      <Failure error={query.error ?? projects.error} />
      {!query.data ? (
        query.isPending && !projects.error && <Loading what="gateways" />
      ) : query.data.length > 0 ? (
        <Table label="Gateways" columns={GATEWAY_COLUMNS} rows={query.data} idOf={(gateway) => gateway.id} />
      ) : (
        <Empty title="No gateways">
          <p>A gateway gives services a domain of their own. Without one they are reached through the server.</p>
        </Empty>
      )}
    </>
  );
}

export function GatewayPage() {
  const { p, name } = useParams({ strict: false }) as { p: string; name: string };
  const client = useQueryClient();
  const navigate = useNavigate();
  const list = useQuery(queries.gateways(p));
  const project = useQuery(queries.project(p));
  const me = useQuery(queries.me());
  const gateway = list.data?.find((each) => each.name === name);
  if (!gateway) {
    if (list.isPending) return <Loading what="the gateway" />;
    return <NotThere what="gateway" error={list.error ?? new ApiError(404, [{ text: "Gateway not found", place: [] }], null)} />;
  }
  const may = project.data && me.data ? rightsIn(project.data, me.data).manageGateways : false;
  const then = async (call: Promise<unknown>) => {
    await call;
    await queries.changed(client, "gateways");
  };
  return (
    <>
      <Head
        title={gateway.name}
        above={
          <>
            <Link to="/gateways">Gateways</Link> / <Link to="/projects/$p" params={{ p }}>{p}</Link>
          </>
        }
      >
        <Status text={gateway.status} />
        {may && !gateway.default && (
          <Action label="Make default" kind="primary" cli={dstack(["gateway", "update", name, "--set-default"], p)} done="It is the default now" act={() => then(post("/api/project/{project_name}/gateways/set_default", { params: { project_name: p }, body: { name } }))}>
            <p>Services that name no gateway use it from then on.</p>
          </Action>
        )}
        {may && (
          <Action
            label="Delete"
            cli={dstack(["gateway", "delete", name, "-y"], p)}
            typed={name}
            act={async () => {
              await then(post("/api/project/{project_name}/gateways/delete", { params: { project_name: p }, body: { names: [name] } }));
              await navigate({ to: "/gateways" });
            }}
          >
            <p>Its services are not reached any more under its domain.</p>
          </Action>
        )}
      </Head>
      {gateway.status_message && <Alert kind="warning">{gateway.status_message}</Alert>}
      <Section title="General">
        <Facts
          facts={[
            ["Backend", gateway.configuration.backend],
            ["Region", gateway.configuration.region],
            ["Domain", gateway.wildcard_domain],
            ["Host", gateway.hostname],
            ["Default", gateway.default ? "yes" : "no"],
            ["Replicas", gateway.replicas.map((replica) => `${replica.replica_num}: ${replica.status}`).join(", ")],
            ["Created", <Time key="c" at={gateway.created_at} />],
          ]}
        />
      </Section>
      <Section title="Everything">
        <Inspect value={gateway} />
      </Section>
    </>
  );
}
