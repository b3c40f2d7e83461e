/** The audit trail of all that one may see. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import * as queries from "../api/queries";
import type { EventsRequest } from "../api/types";
import { dstack } from "../logic/cli";
import { Empty, Head } from "../parts/basic";
import { CliButton } from "../parts/dialog";
import { Events } from "../parts/events";
import { Choice, FilterBar, useFilters } from "../parts/filters";

const TYPES = ["project", "user", "fleet", "instance", "run", "job", "volume", "gateway", "secret"];

export function EventsPage() {
  const [filters, set] = useFilters("events");
  const [type, setType] = useState<string>();
  const projects = useQuery(queries.projects());
  const project = projects.data?.find((each) => each.project_name === filters.project);
  const filter: EventsRequest = {
    ...(project && { within_projects: [project.project_id] }),
    ...(type && { include_target_types: [type] as never }),
  };
  return (
    <>
      <Head title="Events">
        <CliButton text={dstack(["event", "list"], filters.project ?? "main")} />
      </Head>
      <FilterBar filters={filters} set={set}>
        <Choice label="Type" all="About anything" value={type} options={TYPES} onChange={setType} />
      </FilterBar>
      {filters.project !== undefined && projects.isSuccess && !project && <Empty title="You see no project of this name" />}
      {(filters.project === undefined || project) && <Events key={JSON.stringify(filter)} filter={filter} />}
    </>
  );
}
