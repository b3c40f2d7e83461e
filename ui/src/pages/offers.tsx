/** Offers of a project. */

import { Link } from "@tanstack/react-router";
import { Empty, Failure, Head, Loading } from "../parts/basic";
import { Choice, useProjectChoice } from "../parts/filters";
import { Offers } from "../parts/offers";

export function OffersPage() {
  const project = useProjectChoice();
  return (
    <>
      <Head title="Offers">
        <Choice label="Project" all="Choose a project" value={project.name} options={project.names} onChange={project.set} />
        <Link to="/runs/launch" search={(project.name ? { project_name: project.name } : {}) as never} className="button primary">
          Launch
        </Link>
      </Head>
      {project.name ? <Offers key={project.name} project={project.name} /> : project.isLoading ? <Loading what="projects" /> : project.error ? <Failure error={project.error} /> : <Empty title="You are in no project" />}
    </>
  );
}
