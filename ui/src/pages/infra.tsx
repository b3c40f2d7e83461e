/** Fleets, instances and volumes. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Fleet, Instance, Volume } from "../api/types";
import { dstack, each } from "../logic/cli";
import { count, money, price, range, resources } from "../logic/format";
import { Alert, Empty, Facts, Failure, Head, Loading, Section, Status, Tabs, Time } from "../parts/basic";
import { Action, CliButton } from "../parts/dialog";
import { Events } from "../parts/events";
import { FilterBar, useFilters } from "../parts/filters";
import { Inspect } from "../parts/inspect";
import { Offers } from "../parts/offers";
import { type Column, ReadAgain, Table, useSelection } from "../parts/table";
import { NotThere } from "./run";

const projectLink = (name: string) => (
  <Link to="/projects/$p" params={{ p: name }}>
    {name}
  </Link>
);

function priceOf(fleet: Fleet): number | null {
  const prices = alive(fleet.instances).map((instance) => instance.price).filter((each) => each !== null);
  return prices.length === 0 ? null : prices.reduce((sum, each) => sum + each, 0);
}

function alive(instances: Instance[]): Instance[] {
  return instances.filter((instance) => instance.status !== "terminated");
}

/** What a fleet asks for. */
function wanted(fleet: Fleet): string {
  const { resources: of, nodes, ssh_config: ssh } = fleet.spec.configuration;
  if (ssh) return count(ssh.hosts.length, "host");
  const parts = [nodes && `${range({ min: nodes.min, max: nodes.max })} nodes`];
  if (of) {
    parts.push(of.cpu.count && `${range(of.cpu.count)} CPU`, range(of.memory, "GB"));
    if (of.gpu && (of.gpu.count.max ?? 1) > 0 && (of.gpu.name || (of.gpu.count.min ?? 0) > 0)) parts.push(`${[of.gpu.name ?? "GPU"].flat().join(",")} ×${range(of.gpu.count)}`);
  }
  return parts.filter(Boolean).join(" · ");
}

const FLEET_COLUMNS: Column<Fleet>[] = [
  {
    name: "Name",
    cell: (fleet) => (
      <Link to="/projects/$p/fleets/$id" params={{ p: fleet.project_name, id: fleet.id }} className="name">
        {fleet.name}
      </Link>
    ),
  },
  {
    name: "Status",
    cell: (fleet) => (
      <>
        <Status text={fleet.status} />
        {fleet.status_message && <span className="sub">{fleet.status_message}</span>}
      </>
    ),
  },
  { name: "Project", cell: (fleet) => projectLink(fleet.project_name), isMinor: true },
  { name: "Wants", cell: wanted },
  {
    name: "Instances",
    cell: (fleet) => {
      const living = alive(fleet.instances);
      return (
        <>
          <Link to="/instances" search={{ fleet_id: fleet.id } as never}>
            {count(living.length, "instance")}
          </Link>
          <BlockMap instances={living} />
        </>
      );
    },
  },
  { name: "Price", cell: (fleet) => price(priceOf(fleet)), isNumber: true },
  { name: "Created", cell: (fleet) => <Time at={fleet.created_at} />, isMinor: true },
];

/** Each instance as a row of its blocks: taken ones are filled. */
function BlockMap({ instances }: { instances: Instance[] }) {
  if (instances.length === 0) return null;
  const shown = instances.slice(0, 64);
  const [busy, total] = [instances.reduce((sum, each) => sum + each.busy_blocks, 0), instances.reduce((sum, each) => sum + (each.total_blocks ?? 1), 0)];
  return (
    <span className="blocks" role="img" aria-label={`${busy} of ${total} blocks are in use`}>
      {shown.map((instance) => (
        <span key={instance.id} className={`machine ${instance.unreachable ? "unreachable" : instance.status}`} title={`${instance.name}: ${instanceStatus(instance)}`}>
          {Array.from({ length: Math.min(16, instance.total_blocks ?? 1) }, (_, at) => (
            <span key={at} className={at < instance.busy_blocks ? "taken" : ""} />
          ))}
        </span>
      ))}
      {instances.length > shown.length && <span className="muted">+{instances.length - shown.length}</span>}
    </span>
  );
}

function useDeleteFleets() {
  const client = useQueryClient();
  return async (fleets: Fleet[]) => {
    const byProject = Map.groupBy(fleets, (fleet) => fleet.project_name);
    for (const [project_name, own] of byProject) {
      await post("/api/project/{project_name}/fleets/delete", { params: { project_name }, body: { names: own.map((fleet) => fleet.name) } });
    }
    await queries.changed(client, "fleets", "fleet", "instances");
  };
}

function DeleteFleets({ fleets }: { fleets: Fleet[] }) {
  const remove = useDeleteFleets();
  return (
    <Action
      label="Delete"
      title={`Delete ${count(fleets.length, "fleet")}?`}
      disabled={fleets.length === 0}
      cli={each(fleets, (fleet) => dstack(["fleet", "delete", fleet.name, "-y"], fleet.project_name))}
      done="Deleting"
      act={() => remove(fleets)}
    >
      <p>{fleets.map((fleet) => `${fleet.project_name}/${fleet.name}`).join(", ")}: their instances end.</p>
    </Action>
  );
}

export function FleetsPage() {
  const [filters, set] = useFilters("fleets");
  const list = queries.useListing(queries.fleetsOf(filters));
  const selection = useSelection(list.rows, (fleet) => fleet.id);
  const projects = useQuery(queries.projects());
  const target = filters.project ?? projects.data?.at(-1)?.project_name;
  return (
    <>
      <Head title="Fleets">
        {selection.chosen.length > 0 && <DeleteFleets fleets={selection.chosen} />}
        <CliButton text={dstack(["fleet", "list"], filters.project ?? "main")} />
        {target && (
          <Link to="/projects/$p/fleets/add" params={{ p: target }} className="button primary">
            Add fleet
          </Link>
        )}
      </Head>
      <FilterBar filters={filters} set={set} activeLabel="Active only" />
      <Failure error={list.error} />
      {!list.data ? (
        list.isPending && <Loading what="fleets" />
      ) : list.rows.length === 0 ? (
        <Empty title="No fleets">
          <p>A fleet says which machines runs may use: those of clouds, made when they are needed, or your own, reached over SSH.</p>
        </Empty>
      ) : (
        <Table label="Fleets" columns={FLEET_COLUMNS} rows={list.rows} idOf={(fleet) => fleet.id} nameOf={(fleet) => fleet.name} selection={selection} more={list.more} />
      )}
      <ReadAgain again={list.again} />
    </>
  );
}

export function FleetView({ view }: { view: "details" | "offers" | "events" | "inspect" }) {
  const { p, id } = useParams({ strict: false }) as { p: string; id: string };
  const { data: fleet, error } = useQuery(queries.fleet(p, id));
  if (!fleet) return error ? <NotThere what="fleet" error={error} /> : <Loading what="the fleet" />;
  const params = { p, id };
  return (
    <>
      <Head
        title={fleet.name}
        above={
          <>
            <Link to="/fleets">Fleets</Link> / {projectLink(p)}
          </>
        }
      >
        <Status text={fleet.status} />
        <CliButton text={dstack(["fleet", "get", fleet.name], p)} />
        <DeleteFleets fleets={[fleet]} />
      </Head>
      {fleet.status_message && <Alert kind="warning">{fleet.status_message}</Alert>}
      <Tabs
        label="Views of the fleet"
        tabs={[
          { name: "Details", link: { to: "/projects/$p/fleets/$id", params } },
          { name: "Offers", link: { to: "/projects/$p/fleets/$id/offers", params } },
          { name: "Events", link: { to: "/projects/$p/fleets/$id/events", params } },
          { name: "Inspect", link: { to: "/projects/$p/fleets/$id/inspect", params } },
        ]}
      />
      {view === "details" && (
        <>
          <Section title="General">
            <Facts
              facts={[
                ["Project", projectLink(fleet.project_name)],
                ["Wants", wanted(fleet)],
                ["Placement", fleet.spec.configuration.placement],
                ["Backends", fleet.spec.configuration.backends?.join(", ")],
                ["Spot policy", fleet.spec.configuration.spot_policy],
                ["Created", <Time key="c" at={fleet.created_at} />],
                ["Price", price(priceOf(fleet))],
                ["Blocks in use", <BlockMap key="b" instances={alive(fleet.instances)} />],
              ]}
            />
          </Section>
          <Section title="Instances">
            {fleet.instances.length === 0 ? <Empty title="It has none now" /> : <InstanceTable instances={fleet.instances} isInFleet />}
          </Section>
        </>
      )}
      {view === "offers" && <Offers project={p} fleet={fleet.name} />}
      {view === "events" && <Events filter={{ within_fleets: [fleet.id] }} />}
      {view === "inspect" && <Inspect value={fleet} />}
    </>
  );
}

function instanceStatus(instance: Instance): string {
  if (instance.unreachable) return "unreachable";
  const blocks = instance.total_blocks ?? 1;
  return blocks > 1 && instance.status === "busy" ? `${instance.busy_blocks}/${blocks} busy` : instance.status;
}

const INSTANCE_COLUMNS: Column<Instance>[] = [
  {
    name: "Name",
    cell: (instance) => (
      <Link to="/projects/$p/instances/$id" params={{ p: instance.project_name, id: instance.id }} className="name">
        {instance.name}
      </Link>
    ),
  },
  {
    name: "Status",
    cell: (instance) => (
      <>
        <Status text={instanceStatus(instance)} base={instance.unreachable ? "warning" : instance.status} />
        {instance.health_status !== "healthy" && <span className="sub bad">health: {instance.health_status}</span>}
        {instance.termination_reason && <span className="sub">{instance.termination_reason_message ?? instance.termination_reason}</span>}
      </>
    ),
  },
  {
    name: "Fleet",
    cell: (instance) =>
      instance.fleet_id && (
        <Link to="/projects/$p/fleets/$id" params={{ p: instance.project_name, id: instance.fleet_id }}>
          {instance.fleet_name}
        </Link>
      ),
  },
  { name: "Backend", cell: (instance) => [instance.backend, instance.region !== instance.backend && instance.region].filter(Boolean).join(" ") },
  {
    name: "Resources",
    cell: (instance) => (
      <>
        {resources(instance.instance_type?.resources)}
        {instance.instance_type?.resources.spot && " · spot"}
        <span className="sub">{instance.instance_type?.name}</span>
      </>
    ),
  },
  { name: "Host", cell: (instance) => instance.hostname ?? "", isMinor: true },
  { name: "Price", cell: (instance) => price(instance.price), isNumber: true },
  { name: "Project", cell: (instance) => projectLink(instance.project_name), isMinor: true },
  { name: "Started", cell: (instance) => <Time at={instance.created} />, isMinor: true },
];

function InstanceTable({ instances, isInFleet, more }: { instances: Instance[]; isInFleet?: boolean; more?: (() => void) | undefined }) {
  const columns = isInFleet ? INSTANCE_COLUMNS.filter((column) => column.name !== "Fleet" && column.name !== "Project") : INSTANCE_COLUMNS;
  const selection = useSelection(instances, (instance) => instance.id);
  return (
    <>
      {selection.chosen.length > 0 && (
        <div className="actions">
          <DeleteInstances instances={selection.chosen} after={() => selection.set(new Set())} />
        </div>
      )}
      <Table label="Instances" columns={columns} rows={instances} idOf={(instance) => instance.id} nameOf={(instance) => instance.name} selection={selection} more={more} />
    </>
  );
}

function DeleteInstances({ instances, after }: { instances: Instance[]; after?: () => void }) {
  const client = useQueryClient();
  const living = alive(instances).filter((instance) => instance.fleet_name !== null);
  const act = async () => {
    const byFleet = Map.groupBy(living, (instance) => JSON.stringify([instance.project_name, instance.fleet_name]));
    for (const own of byFleet.values()) {
      const [first] = own;
      if (!first?.fleet_name) continue;
      await post("/api/project/{project_name}/fleets/delete_instances", {
        params: { project_name: first.project_name },
        body: { name: first.fleet_name, instance_nums: own.map((instance) => instance.instance_num) },
      });
    }
    await queries.changed(client, "instances", "instance", "fleets", "fleet");
    after?.();
  };
  return (
    <Action
      label="Delete"
      title={`Delete ${count(living.length, "instance")}?`}
      disabled={living.length === 0}
      cli={each(living, (instance) => dstack(["fleet", "delete", instance.fleet_name ?? "", "-i", String(instance.instance_num), "-y"], instance.project_name))}
      done="Deleting"
      act={act}
    >
      <p>{living.map((instance) => instance.name).join(", ")}</p>
    </Action>
  );
}

export function InstancesPage() {
  const [filters, set] = useFilters("instances");
  const list = queries.useListing(queries.instancesOf(filters));
  return (
    <>
      <Head title="Instances">
        <CliButton text={dstack(["fleet", "list"], filters.project ?? "main")} />
      </Head>
      <FilterBar filters={filters} set={set} activeLabel="Active only" />
      <Failure error={list.error} />
      {!list.data ? list.isPending && <Loading what="instances" /> : list.rows.length === 0 ? <Empty title="No instances" /> : <InstanceTable instances={list.rows} more={list.more} />}
      <ReadAgain again={list.again} />
    </>
  );
}

export function InstanceView({ view }: { view: "details" | "events" | "inspect" }) {
  const { p, id } = useParams({ strict: false }) as { p: string; id: string };
  const { data: instance, error } = useQuery(queries.instance(p, id));
  if (!instance) return error ? <NotThere what="instance" error={error} /> : <Loading what="the instance" />;
  const params = { p, id };
  const type = instance.instance_type;
  return (
    <>
      <Head
        title={instance.name}
        above={
          <>
            <Link to="/instances">Instances</Link> / {projectLink(p)}
          </>
        }
      >
        <Status text={instanceStatus(instance)} base={instance.status} />
        <DeleteInstances instances={[instance]} />
      </Head>
      {instance.unreachable && <Alert kind="warning" title="It does not answer">Jobs on it go on as far as is known; they end when it stays away.</Alert>}
      <Tabs
        label="Views of the instance"
        tabs={[
          { name: "Details", link: { to: "/projects/$p/instances/$id", params } },
          { name: "Events", link: { to: "/projects/$p/instances/$id/events", params } },
          { name: "Inspect", link: { to: "/projects/$p/instances/$id/inspect", params } },
        ]}
      />
      {view === "details" && (
        <Section title="General">
          <Facts
            facts={[
              ["Project", projectLink(instance.project_name)],
              ["Fleet", instance.fleet_id && <Link to="/projects/$p/fleets/$id" params={{ p, id: instance.fleet_id }}>{instance.fleet_name}</Link>],
              ["Backend", instance.backend],
              ["Region", instance.region],
              ["Availability zone", instance.availability_zone],
              ["Type", type?.name],
              ["Resources", resources(type?.resources, true)],
              ["Spot", type?.resources.spot ? "yes" : null],
              ["Host", instance.hostname],
              ["Blocks", `${instance.busy_blocks} of ${instance.total_blocks ?? "?"} in use`],
              ["Job", instance.job_name],
              ["Price", price(instance.price)],
              ["Health", instance.health_status],
              ["GPU driver", instance.gpu_driver?.version],
              ["Started", <Time key="s" at={instance.created} />],
              ["Finished", instance.finished_at && <Time at={instance.finished_at} />],
              ["Why it ended", instance.termination_reason_message ?? instance.termination_reason],
            ]}
          />
        </Section>
      )}
      {view === "events" && <Events filter={{ target_instances: [instance.id] }} />}
      {view === "inspect" && <Inspect value={instance} />}
    </>
  );
}

const VOLUME_COLUMNS: Column<Volume>[] = [
  { name: "Name", cell: (volume) => <span className="name">{volume.name}</span> },
  {
    name: "Status",
    cell: (volume) => (
      <>
        <Status text={volume.deleted ? "deleted" : volume.status} />
        {volume.status_message && <span className="sub bad">{volume.status_message}</span>}
      </>
    ),
  },
  { name: "Project", cell: (volume) => projectLink(volume.project_name) },
  { name: "Backend", cell: (volume) => volume.configuration.backend },
  { name: "Region", cell: (volume) => ("region" in volume.configuration ? volume.configuration.region : "") },
  { name: "Size", cell: (volume) => (volume.provisioning_data?.size_gb ? `${volume.provisioning_data.size_gb}GB` : ""), isNumber: true },
  { name: "Attached to", cell: (volume) => volume.attachments?.map((each) => each.instance.name).join(", ") ?? "" },
  { name: "Price", cell: (volume) => (volume.provisioning_data?.price ? `${money(volume.provisioning_data.price)}/month` : ""), isNumber: true, isMinor: true },
  { name: "Cost", cell: (volume) => (volume.cost > 0 ? money(volume.cost) : ""), isNumber: true, isMinor: true },
  { name: "Created", cell: (volume) => <Time at={volume.created_at} />, isMinor: true },
];

export function VolumesPage() {
  const [filters, set] = useFilters("volumes");
  const client = useQueryClient();
  const list = queries.useListing(queries.volumesOf(filters));
  const selection = useSelection(list.rows, (volume) => volume.id);
  const chosen = selection.chosen.filter((volume) => !volume.deleted);
  const remove = async () => {
    const byProject = Map.groupBy(chosen, (volume) => volume.project_name);
    for (const [project_name, own] of byProject) {
      await post("/api/project/{project_name}/volumes/delete", { params: { project_name }, body: { names: own.map((volume) => volume.name) } });
    }
    await queries.changed(client, "volumes");
    selection.set(new Set());
  };
  return (
    <>
      <Head title="Volumes">
        {chosen.length > 0 && (
          <Action label="Delete" title={`Delete ${count(chosen.length, "volume")}?`} cli={each(chosen, (volume) => dstack(["volume", "delete", volume.name, "-y"], volume.project_name))} done="Deleting" act={remove}>
            <p>{chosen.map((volume) => volume.name).join(", ")}: what is on them is lost, unless they were there before dstack.</p>
          </Action>
        )}
        <CliButton text={dstack(["volume", "list"], filters.project ?? "main")} />
        <Link to="/runs/launch" search={{ kind: "volume", ...(filters.project && { project_name: filters.project }) } as never} className="button primary">
          Add volume
        </Link>
      </Head>
      <FilterBar filters={filters} set={set} activeLabel="Active only" />
      <Failure error={list.error} />
      {!list.data ? (
        list.isPending && <Loading what="volumes" />
      ) : list.rows.length === 0 ? (
        <Empty title="No volumes">
          <p>A volume is a disk of a cloud that outlives the runs that use it.</p>
        </Empty>
      ) : (
        <Table label="Volumes" columns={VOLUME_COLUMNS} rows={list.rows} idOf={(volume) => volume.id} nameOf={(volume) => volume.name} selection={selection} more={list.more} />
      )}
      <ReadAgain again={list.again} />
    </>
  );
}
