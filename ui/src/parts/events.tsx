/** The audit trail. */

import { Link } from "@tanstack/react-router";
import * as queries from "../api/queries";
import type { Event, EventsRequest } from "../api/types";
import { exact, exactInZone } from "../logic/time";
import { Empty, Failure, Loading } from "./basic";
import { type Column, ReadAgain, Table } from "./table";

function Target({ target }: { target: Event["targets"][number] }) {
  const { type, project_name: project, name, id } = target;
  const isGone = target.is_project_deleted === true;
  const text = project && type !== "project" ? `${project}/${name}` : name;
  const p = project ?? "";
  let link = <>{text}</>;
  if (!isGone) {
    if (type === "run") link = <Link to="/projects/$p/runs/$runId" params={{ p, runId: id }}>{text}</Link>;
    else if (type === "fleet") link = <Link to="/projects/$p/fleets/$id" params={{ p, id }}>{text}</Link>;
    else if (type === "instance") link = <Link to="/projects/$p/instances/$id" params={{ p, id }}>{text}</Link>;
    else if (type === "project") link = <Link to="/projects/$p" params={{ p: name }}>{text}</Link>;
  }
  return (
    <span className="target">
      <span className="muted">{type.replaceAll("-", " ")}</span> {link}
    </span>
  );
}

const COLUMNS: Column<Event>[] = [
  { name: "When", cell: (event) => <time dateTime={event.recorded_at} title={exactInZone(event.recorded_at)}>{exact(event.recorded_at)}</time> },
  { name: "Who", cell: (event) => event.actor_user ?? <span className="muted">system</span> },
  {
    name: "What it is about",
    isWide: true,
    cell: (event) => (
      <span className="targets">
        {event.targets.map((target) => (
          <Target key={`${target.type}${target.id}`} target={target} />
        ))}
      </span>
    ),
  },
  { name: "What happened", cell: (event) => event.message },
];

export function Events({ filter }: { filter: EventsRequest }) {
  const list = queries.useListing(queries.eventsOf(filter));
  if (list.isPending) return <Loading what="events" />;
  return (
    <>
      <Failure error={list.error} />
      {!list.data ? null : list.rows.length === 0 ? (
        <Empty title="No events" />
      ) : (
        <Table label="Events" columns={COLUMNS} rows={list.rows} idOf={(event) => event.id} more={list.more} />
      )}
      <ReadAgain again={list.again} />
      {list.isFull && <p className="muted" role="status">Of the events the newest {queries.MOST_EVENTS.toLocaleString("en")} are kept here; <code>dstack event list</code> has all.</p>}
    </>
  );
}
