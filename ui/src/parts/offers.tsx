/** What could be had: GPUs (or CPUs) with their prices, grouped. */

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { post } from "../api/client";
import type { CpuGroup, GpuGroup } from "../api/types";
import { dstack } from "../logic/cli";
import { memory, priceRange, range, words } from "../logic/format";
import { Empty, Failure, Loading, Notices, Status, Toggle } from "./basic";
import { CliButton } from "./dialog";
import { Choice } from "./filters";
import { type Column, Table } from "./table";

const OFFERS_MS = 60_000;
const MISSING_MS = 10_000;
const MOST_ASKED = 6;
const VENDORS = ["nvidia", "amd", "google", "intel", "tenstorrent"];

interface Wanted {
  kind: "gpu" | "cpu";
  name: string;
  vendor: string | undefined;
  memory: string;
  count: string;
  spot: string | undefined;
  byBackend: boolean;
}

const GPU_COLUMNS: Column<GpuGroup>[] = [
  { name: "GPU", cell: (group) => <span className="name">{group.name}</span> },
  { name: "Memory", cell: (group) => memory(group.memory_mib), isNumber: true },
  { name: "Per machine", cell: (group) => range(group.count), isNumber: true },
  { name: "Price of one", cell: (group) => priceRange(group.price.min, group.price.max), isNumber: true },
  { name: "Backends", cell: (group) => group.backend ?? group.backends?.join(", ") ?? "" },
  { name: "Kinds", cell: (group) => group.spot.join(", "), isMinor: true },
  { name: "Vendor", cell: (group) => group.vendor, isMinor: true },
  { name: "Availability", cell: (group) => <Availability states={group.availability} /> },
];

const CPU_COLUMNS: Column<CpuGroup>[] = [
  { name: "CPUs", cell: (group) => <span className="name">{range(group.count)}</span> },
  { name: "Architecture", cell: (group) => group.cpu_arch.join(", ") },
  { name: "Memory", cell: (group) => `${memory(group.memory_mib.min ?? 0)} – ${memory(group.memory_mib.max ?? 0)}` },
  { name: "Price", cell: (group) => priceRange(group.price.min, group.price.max), isNumber: true },
  { name: "Backends", cell: (group) => group.backend ?? group.backends?.join(", ") ?? "" },
  { name: "Kinds", cell: (group) => group.spot.join(", "), isMinor: true },
  { name: "Availability", cell: (group) => <Availability states={group.availability} /> },
];

function Availability({ states }: { states: string[] }) {
  const best = ["available", "idle", "unknown", "busy", "no_quota", "no_balance", "not_available"].find((state) => states.includes(state));
  if (!best) return null;
  return best === "unknown" ? <span className="muted">Not known</span> : <Status text={words(best)} base={best === "available" || best === "idle" ? "available" : "warning"} />;
}

export function Offers({ project, fleet }: { project: string; fleet?: string }) {
  const [wanted, setWanted] = useState<Wanted>({ kind: "gpu", name: "", vendor: undefined, memory: "", count: "", spot: undefined, byBackend: false });
  const set = (changes: Partial<Wanted>) => setWanted({ ...wanted, ...changes });
  const isGpu = wanted.kind === "gpu";
  const gpu = isGpu
    ? {
        ...(wanted.vendor && { vendor: wanted.vendor }),
        ...(wanted.name.trim() && { name: wanted.name.split(",").map((name) => name.trim()).filter(Boolean) }),
        ...(wanted.memory.trim() && { memory: wanted.memory.trim() }),
        count: wanted.count.trim() || "1..",
      }
    : { count: 0 };
  const configuration = {
    type: "task",
    image: "scratch",
    commands: [":"],
    resources: { cpu: "1..", memory: "0..", disk: null, gpu },
    ...(wanted.spot && { spot_policy: wanted.spot }),
    ...(fleet && { fleets: [fleet] }),
  };
  const query = useQuery({
    queryKey: ["offers", project, fleet, wanted],
    queryFn: ({ signal }) =>
      post("/api/project/{project_name}/gpus/list", {
        params: { project_name: project },
        body: { group_by: wanted.byBackend ? ["backend"] : null, full_offers: true, run_spec: { configuration, profile: { name: "default" }, ssh_key_pub: "(dummy)" } } as never,
        signal,
      }),
    staleTime: OFFERS_MS,
    // What is missing may be there soon, or never.
    refetchInterval: ({ state }) => (state.data?.notices?.length && state.dataUpdateCount < MOST_ASKED ? MISSING_MS : false),
    placeholderData: (before) => before,
  });
  const gpus = query.data?.gpus ?? [];
  const cpus = query.data?.cpus ?? [];
  const flags = isGpu ? ["--gpu", [wanted.vendor, wanted.name, wanted.memory, wanted.count || "1.."].filter(Boolean).join(":")] : ["--gpu", "0"];
  const cli = dstack(["offer", ...flags, ...(wanted.spot ? [`--${wanted.spot === "auto" ? "spot-auto" : wanted.spot}`] : []), ...(fleet ? ["--fleet", fleet] : [])], project);
  return (
    <>
      <div className="filters" role="group" aria-label="What is wanted">
        <select aria-label="GPU or CPU" value={wanted.kind} onChange={(event) => set({ kind: event.target.value as Wanted["kind"] })}>
          <option value="gpu">GPUs</option>
          <option value="cpu">CPUs only</option>
        </select>
        {isGpu && (
          <>
            <Choice label="Vendor" all="Any vendor" value={wanted.vendor} options={VENDORS} onChange={(vendor) => set({ vendor })} />
            <input aria-label="GPU name" placeholder="Name: H100, A100" value={wanted.name} onChange={(event) => set({ name: event.target.value })} />
            <input aria-label="GPU memory" placeholder="Memory: 24GB.." size={14} value={wanted.memory} onChange={(event) => set({ memory: event.target.value })} />
            <input aria-label="GPUs per machine" placeholder="Count: 1.." size={10} value={wanted.count} onChange={(event) => set({ count: event.target.value })} />
          </>
        )}
        <Choice label="Spot policy" all="Spot and on-demand" value={wanted.spot} options={["spot", "on-demand"]} onChange={(spot) => set({ spot })} />
        <Toggle label="By backend" checked={wanted.byBackend} onChange={(byBackend) => set({ byBackend })} />
        <CliButton text={cli} />
      </div>
      <Failure error={query.error} />
      <Notices notices={query.data?.notices} />
      {!query.data ? (
        query.isPending && <Loading what="offers" />
      ) : (isGpu ? gpus : cpus).length === 0 ? (
        <Empty title={`No ${isGpu ? "GPUs" : "machines"} are offered`}>
          {isGpu && (
            <p>
              <button type="button" className="button" onClick={() => set({ kind: "cpu" })}>
                Look for CPUs
              </button>
            </p>
          )}
          <p>
            Offers come from the <Link to="/projects/$p" params={{ p: project }}>backends of the project</Link> and from its fleets.
          </p>
        </Empty>
      ) : isGpu ? (
        <Table label="GPUs" columns={GPU_COLUMNS} rows={gpus} idOf={(group) => `${group.name} ${group.memory_mib} ${group.backend ?? ""} ${group.spot.join()}`} />
      ) : (
        <Table label="CPUs" columns={CPU_COLUMNS} rows={cpus} idOf={(group) => JSON.stringify([group.backend, group.count, group.cpu_arch, group.price])} />
      )}
    </>
  );
}

