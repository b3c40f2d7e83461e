/** What runs cost: so far and an hour, by run, user and project. */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo, useRef, useState } from "react";
import * as queries from "../api/queries";
import { costs, costsFrom, cutRuns, ended, type Group, type Grouping, GROUPINGS, type Range, type Slice, together } from "../logic/costs";
import { fromSearch, type ListFilters, toSearch } from "../logic/filters";
import { capitalised, count, money, price } from "../logic/format";
import { exact } from "../logic/time";
import { Button, Empty, Facts, Failure, Head, Loading, Section, useNow } from "../parts/basic";
import { FilterBar } from "../parts/filters";
import { type Column, ReadAgain, Table } from "../parts/table";

/** So many runs are read by themselves; more when one asks for them. */
const STEP = 1000;
/** How often what costs now is added up anew. */
const NOW_MS = 10_000;

const RANGE_NAMES: Record<Range, string> = { "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days", all: "All that is loaded" };
const RANGE_LIST = Object.keys(RANGE_NAMES) as Range[];

function useChoice() {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const chosen = { ...fromSearch(search), ...costsFrom(search) };
  const set = (changes: Partial<ListFilters> & { range?: Range; grouping?: Grouping }) => {
    const { range, grouping, ...filters } = { ...chosen, ...changes };
    void navigate({ to: ".", search: { ...toSearch(filters), range, by: grouping } as never, replace: true });
  };
  return [chosen, set] as const;
}

export function CostsPage() {
  const [{ range, grouping, project, user }, set] = useChoice();
  const filters = { ...(project !== undefined && { project }), ...(user !== undefined && { user }) };
  const [wanted, setWanted] = useState(STEP);
  const list = queries.useListing(queries.costsOf(filters));
  const active = useQuery(queries.activeCosts(filters));
  const running = active.data;
  const { more, rows } = list;
  useEffect(() => {
    if (more && rows.length < wanted) more();
  }, [more, rows.length, wanted]);
  const now = useNow(NOW_MS);
  const runs = useMemo(() => together(rows, running?.runs ?? [], running?.isWhole === true), [rows, running]);
  useReadAgain(list.refetch, useMemo(() => (running?.isWhole ? ended(rows, running.runs) : []), [rows, running]));
  const shown = useMemo(() => costs(runs, range, grouping, now), [runs, range, grouping, now]);
  const isReading = list.isPending || (list.hasNextPage && rows.length < wanted && !list.again);
  const cut = cutRuns(runs, queries.MOST_ATTEMPTS);
  return (
    <>
      <Head title="Costs" />
      <FilterBar filters={{ ...filters, active: false }} set={set} withUsers>
        <select aria-label="Range" value={range} onChange={(event) => set({ range: event.target.value as Range })}>
          {RANGE_LIST.map((each) => (
            <option key={each} value={each}>
              {RANGE_NAMES[each]}
            </option>
          ))}
        </select>
        <select aria-label="Added up by" value={grouping} onChange={(event) => set({ grouping: event.target.value as Grouping })}>
          {GROUPINGS.map((each) => (
            <option key={each} value={each}>
              By {each}
            </option>
          ))}
        </select>
      </FilterBar>
      <Failure error={list.error ?? active.error} />
      {list.data && (
        <>
          <Section title={RANGE_NAMES[range]}>
            <Facts facts={[["Cost", money(shown.total)], ["Now", shown.hourly > 0 ? price(shown.hourly) : "nothing"], ["Runs", shown.runs]]} />
            {shown.total > 0 && <Bars slices={shown.slices} />}
          </Section>
          {shown.groups.length > 0 ? (
            <div className="spaced">
              <Table label={`Costs by ${grouping}`} columns={columns(grouping, shown.total)} rows={shown.groups} idOf={(group) => group.key} />
            </div>
          ) : (
            !isReading && <Empty title="Nothing has cost anything" />
          )}
          <Section title="What is counted">
            <p role="status">
              {isReading ? `Reading runs: ${rows.length.toLocaleString("en")} so far.` : `The newest ${count(rows.length, "run")}, also finished and deleted ones${runs.length > rows.length ? `, and ${count(runs.length - rows.length, "older run")} that run still` : ""}.`}{" "}
              {running?.isWhole === false && `Of those that run now, the newest ${queries.MOST_ACTIVE.toLocaleString("en")} are kept current; others are counted as they were read. `}
              {!isReading && (list.hasNextPage ? "Older ones are not loaded, and not counted." : "These are all that you may see.")}{" "}
              {!isReading && more && <Button onClick={() => setWanted(rows.length + STEP)}>Read on</Button>}
            </p>
            <p>
              Each attempt of a job counts from when it was submitted until it was finished, at the price that its machine was offered for. Of what began before the range, the part within it counts.
              {cut > 0 && ` Of ${count(cut, "run")} with many attempts, the newest ${queries.MOST_ATTEMPTS} of each job count.`} Idle machines of fleets, volumes and gateways are not in it; what a cloud charges may differ.
            </p>
          </Section>
        </>
      )}
      {list.isPending && <Loading what="runs" />}
      <ReadAgain again={list.again} />
    </>
  );
}

/** Reads what is loaded again when runs of it have ended meanwhile: only its head is kept current. For each run once, lest it goes on for ever. */
function useReadAgain(read: () => unknown, ids: string[]): void {
  const asked = useRef(new Set<string>());
  useEffect(() => {
    const fresh = ids.filter((id) => !asked.current.has(id));
    if (fresh.length === 0) return;
    for (const id of fresh) asked.current.add(id);
    read();
  }, [ids, read]);
}

function columns(grouping: Grouping, total: number): Column<Group>[] {
  return [
    { name: capitalised(grouping), cell: (group) => <Name group={group} grouping={grouping} /> },
    ...(grouping === "run" ? [] : [{ name: "Runs", cell: (group: Group) => group.runs, isNumber: true }]),
    { name: "Cost", cell: (group) => money(group.cost), isNumber: true },
    { name: "Now", cell: (group) => (group.hourly > 0 ? price(group.hourly) : ""), isNumber: true },
    { name: "Share", cell: (group) => <Share part={total > 0 ? group.cost / total : 0} />, isWide: true },
  ];
}

function Name({ group, grouping }: { group: Group; grouping: Grouping }) {
  const { name, key, project } = group;
  if (grouping === "user") return <Link to="/users/$u" params={{ u: name }} className="name">{name}</Link>;
  if (grouping === "project") return <Link to="/projects/$p" params={{ p: name }} className="name">{name}</Link>;
  return (
    <>
      {group.isDeleted ? <span className="name">{name}</span> : <Link to="/projects/$p/runs/$runId" params={{ p: project ?? "", runId: key }} className="name">{name}</Link>}
      <span className="sub">
        {project}
        {group.isDeleted && " · deleted"}
      </span>
    </>
  );
}

function Share({ part }: { part: number }) {
  const percent = part * 100;
  return (
    <span className="share">
      <span className="share-bar" aria-hidden="true">
        <span style={{ width: `${percent}%` }} />
      </span>
      {percent < 1 && percent > 0 ? "< 1" : Math.round(percent)} %
    </span>
  );
}

const [WIDTH, HEIGHT, GAP] = [600, 120, 0.2];

/** Costs over the range. What the picture shows is told in words beside it, and in a table behind it. */
function Bars({ slices }: { slices: Slice[] }) {
  const most = slices.reduce((a, b) => (b.cost > a.cost ? b : a), slices[0] ?? { from: 0, to: 0, cost: 0 });
  const width = WIDTH / slices.length;
  const at = (time: number) => exact(new Date(time).toISOString()).slice(0, 16);
  const text = `From ${at(slices[0]?.from ?? 0)} to ${at(slices.at(-1)?.to ?? 0)}; most, ${money(most.cost)}, from ${at(most.from)}`;
  return (
    <figure className="bars">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`Costs over time. ${text}`}>
        {slices.map((slice, index) => {
          const height = most.cost > 0 ? (slice.cost / most.cost) * HEIGHT : 0;
          return (
            <rect key={slice.from} x={(index + GAP / 2) * width} y={HEIGHT - height} width={width * (1 - GAP)} height={height}>
              <title>{`${at(slice.from)}: ${money(slice.cost)}`}</title>
            </rect>
          );
        })}
      </svg>
      <figcaption className="muted">{text}.</figcaption>
      <details>
        <summary>As a table</summary>
        <Table label="Costs over time" columns={[{ name: "From", cell: (slice: Slice) => at(slice.from) }, { name: "To", cell: (slice) => at(slice.to) }, { name: "Cost", cell: (slice) => money(slice.cost), isNumber: true }]} rows={slices} idOf={(slice) => String(slice.from)} />
      </details>
    </figure>
  );
}
