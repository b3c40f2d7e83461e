/** Projects: all of them, a new one, and the settings of one. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { post, serverUrl } from "../api/client";
import * as queries from "../api/queries";
import type { Member, Project, Secret } from "../api/types";
import { addProject, dstack } from "../logic/cli";
import { ChangedMeanwhile } from "../logic/edits";
import { capitalised, count } from "../logic/format";
import { type Rights, rightsIn, rolesToGive } from "../logic/rights";
import { Button, Code, Empty, Facts, Failure, Field, Head, Hidden, Loading, Section, Time, Toggle } from "../parts/basic";
import { Action, FormDialog } from "../parts/dialog";
import { type Column, Most, Table } from "../parts/table";
import { complain, say } from "../toasts";
import { GATEWAY_COLUMNS } from "./gateways";
import { NotThere } from "./run";

const COLUMNS: Column<Project>[] = [
  {
    name: "Name",
    cell: (project) => (
      <Link to="/projects/$p" params={{ p: project.project_name }} className="name">
        {project.project_name}
      </Link>
    ),
  },
  { name: "Owner", cell: (project) => project.owner.username },
  { name: "Visible to", cell: (project) => (project.is_public ? "everybody" : "members") },
  { name: "Created", cell: (project) => <Time at={project.created_at} />, isMinor: true },
];

export function ProjectsPage() {
  const [name, setName] = useState("");
  const me = useQuery(queries.me());
  const projects = useQuery(queries.projects());
  const shown = (projects.data ?? []).filter((each) => each.project_name.toLowerCase().includes(name.toLowerCase()));
  return (
    <>
      <Head title="Projects">
        {me.data?.permissions.can_create_projects && (
          <Link to="/projects/add" className="button primary">
            Create project
          </Link>
        )}
      </Head>
      <div className="filters">
        <input type="search" aria-label="Search by name" placeholder="Search" value={name} onChange={(event) => setName(event.target.value)} />
        <span className="muted" role="status">
          {projects.data && count(shown.length, "project")}
        </span>
      </div>
      <Failure error={projects.error} />
      {!projects.data ? projects.isPending && <Loading what="projects" /> : shown.length === 0 ? <Empty title="No projects" /> : <Table label="Projects" columns={COLUMNS} rows={shown} idOf={(project) => project.project_id} />}
      <Most rows={projects.data} what="projects" />
    </>
  );
}

export function CreateProjectPage() {
  const [name, setName] = useState("");
  const [isPublic, setPublic] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const navigate = useNavigate();
  const client = useQueryClient();
  const isGood = /^[a-zA-Z0-9_-]{1,50}$/.test(name);
  const create = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await post("/api/projects/create", { body: { project_name: name, is_public: isPublic } });
      await queries.changed(client, "projects");
      await navigate({ to: "/projects/$p", params: { p: name } });
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return (
    <>
      <Head title="Create project" above={<Link to="/projects">Projects</Link>} />
      <form className="card narrow" onSubmit={(event) => void create(event)}>
        <Field label="Name" error={name !== "" && !isGood ? "Latin letters, digits, - and _; 50 at most." : null}>
          {(field) => <input {...field} value={name} onChange={(event) => setName(event.target.value)} required autoFocus autoComplete="off" />}
        </Field>
        <Toggle label="Everybody on this server may see it and join" checked={isPublic} onChange={setPublic} />
        <Failure error={error} />
        <div className="dialog-buttons">
          <Button type="submit" kind="primary" busy={isBusy} disabled={isBusy || !isGood}>
            Create
          </Button>
        </div>
      </form>
    </>
  );
}

export function ProjectPage() {
  const { p } = useParams({ strict: false }) as { p: string };
  const { data: project, error } = useQuery(queries.project(p));
  const me = useQuery(queries.me());
  const client = useQueryClient();
  const navigate = useNavigate();
  if (!project || !me.data) return error ? <NotThere what="project" error={error} /> : <Loading what="the project" />;
  const rights = rightsIn(project, me.data);
  const then = async (call: Promise<unknown>) => {
    await call;
    await queries.changed(client, "project", "projects", "secrets", "gateways");
  };
  const params = { project_name: p };
  return (
    <>
      <Head title={project.project_name} above={<Link to="/projects">Projects</Link>}>
        {rights.join && (
          <Action label="Join" kind="primary" done="You are a member now" act={() => then(post("/api/projects/{project_name}/add_members", { params, body: { members: [{ username: me.data.username, project_role: "user" }] } }))}>
            <p>You may use what the project has from then on.</p>
          </Action>
        )}
        {rights.leave && (
          <Action
            label="Leave"
            act={async () => {
              await post("/api/projects/{project_name}/remove_members", { params, body: { usernames: [me.data.username] } });
              await queries.changed(client, "projects");
              await navigate({ to: "/projects" });
            }}
          >
            <p>You cannot use the project any more until somebody adds you again.</p>
          </Action>
        )}
        <Link to="/runs" search={{ project_name: p } as never} className="button">
          Runs
        </Link>
      </Head>
      <Section title="General">
        <Facts
          facts={[
            ["Owner", project.owner.username],
            ["Visible to", project.is_public ? "everybody" : "its members"],
            ["Created", <Time key="c" at={project.created_at} />],
            ["Your role", rights.role ?? (rights.isAdminOfServer ? "administrator of the server" : "none")],
            ["Templates", project.templates_repo],
          ]}
        />
      </Section>
      {rights.use && (
        <Section title="Command line">
          <p>With your token in place of <code>$DSTACK_TOKEN</code> (your <Link to="/users/$u" params={{ u: me.data.username }}>settings</Link> have it), this connects a command line:</p>
          <Code text={addProject(p, serverUrl(), "$DSTACK_TOKEN")} label="Command to add the project" />
        </Section>
      )}
      <Backends project={project} rights={rights} then={then} />
      {rights.use && <Gateways p={p} rights={rights} />}
      <Members project={project} rights={rights} then={then} />
      {rights.manageSecrets && <Secrets p={p} then={then} />}
      {(rights.manageProject || rights.deleteProject) && (
        <Section title="Danger zone">
          <div className="actions start">
            {rights.manageProject && (
              <Action
                label={project.is_public ? "Make private" : "Make public"}
                done="Changed"
                act={() => then(post("/api/projects/{project_name}/update", { params, body: { is_public: !project.is_public } }))}
              >
                <p>{project.is_public ? "Only members see it from then on." : "Everybody on this server sees it, and may join as a user."}</p>
              </Action>
            )}
            {rights.deleteProject && (
              <Action
                label="Delete project"
                typed={p}
                act={async () => {
                  await post("/api/projects/delete", { body: { projects_names: [p] } });
                  await queries.changed(client, "projects");
                  say(`${p} is deleted`);
                  await navigate({ to: "/projects" });
                }}
              >
                <p>Its history goes with it. Active runs, fleets and volumes have to be ended first.</p>
              </Action>
            )}
          </div>
        </Section>
      )}
    </>
  );
}

type Then = (call: Promise<unknown>) => Promise<void>;

function Backends({ project, rights, then }: { project: Project; rights: Rights; then: Then }) {
  const p = project.project_name;
  const columns: Column<Project["backends"][number]>[] = [
    {
      name: "Type",
      cell: (backend) =>
        rights.manageBackends ? (
          <Link to="/projects/$p/backends/$type" params={{ p, type: backend.name }} className="name">
            {backend.name}
          </Link>
        ) : (
          backend.name
        ),
    },
  ];
  if (rights.manageBackends) {
    columns.push({
      name: "Actions",
      cell: (backend) => (
        <Action label="Delete" of={`backend ${backend.name}`} title={`Delete backend ${backend.name}?`} done="Deleted" act={() => then(post("/api/project/{project_name}/backends/delete", { params: { project_name: p }, body: { backends_names: [backend.name] as never } }))}>
          <p>No machines are made there any more. Its instances and volumes have to be deleted first.</p>
        </Action>
      ),
    });
  }
  return (
    <Section
      title="Backends"
      actions={
        rights.manageBackends && (
          <Link to="/projects/$p/backends/add" params={{ p }} className="button">
            Add backend
          </Link>
        )
      }
    >
      {project.backends.length === 0 ? <p className="muted">No clouds are configured.</p> : <Table label="Backends" columns={columns} rows={project.backends} idOf={(backend) => backend.name} />}
    </Section>
  );
}

function Gateways({ p, rights }: { p: string; rights: Rights }) {
  const query = useQuery(queries.gateways(p));
  return (
    <Section
      title="Gateways"
      actions={
        rights.manageGateways && (
          <Link to="/projects/$p/gateways/add" params={{ p }} className="button">
            Add gateway
          </Link>
        )
      }
    >
      <Failure error={query.error} />
      {!query.data ? query.isPending && <Loading what="gateways" /> : query.data.length > 0 ? <Table label="Gateways" columns={GATEWAY_COLUMNS.filter((column) => column.name !== "Project")} rows={query.data} idOf={(gateway) => gateway.id} /> : <p className="muted">There are none.</p>}
    </Section>
  );
}

function Members({ project, rights, then }: { project: Project; rights: Rights; then: Then }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<Member["project_role"]>("user");
  const users = useQuery({ ...queries.users(), enabled: rights.manageMembers });
  const params = { project_name: project.project_name };
  // One member at a time: what others change meanwhile stays.
  const put = (username: string, project_role: Member["project_role"]) =>
    then(post("/api/projects/{project_name}/add_members", { params, body: { members: [{ username, project_role }] } }));
  const remove = (username: string) => then(post("/api/projects/{project_name}/remove_members", { params, body: { usernames: [username] } }));
  const add = async (event: FormEvent) => {
    event.preventDefault();
    try {
      await put(name.trim(), role);
      setName("");
      say("Added");
    } catch (failed) {
      complain(failed);
    }
  };
  const columns: Column<Member>[] = [
    {
      name: "User",
      cell: (member) => (
        <>
          <span className="name">{member.user.username}</span>
          {member.user.email && <span className="sub">{member.user.email}</span>}
        </>
      ),
    },
    {
      name: "Role",
      cell: (member) => {
        const roles = rolesToGive(rights, member.project_role);
        if (roles.length === 0) return capitalised(member.project_role);
        return (
          <select aria-label={`Role of ${member.user.username}`} value={member.project_role} onChange={(event) => void put(member.user.username, event.target.value as Member["project_role"]).then(() => say("Changed"), complain)}>
            {roles.map((each) => (
              <option key={each} value={each}>
                {capitalised(each)}
              </option>
            ))}
          </select>
        );
      },
    },
  ];
  if (rights.manageMembers) {
    columns.push({
      name: "Actions",
      cell: (member) =>
        rolesToGive(rights, member.project_role).length > 0 && (
          <Action label="Remove" of={member.user.username} title={`Remove ${member.user.username}?`} done="Removed" act={() => remove(member.user.username)}>
            <p>They cannot use the project any more.</p>
          </Action>
        ),
    });
  }
  const known = new Set(project.members.map((member) => member.user.username));
  return (
    <Section title={`Members (${project.members.length})`}>
      {project.members.length > 0 && <Table label="Members" columns={columns} rows={project.members} idOf={(member) => member.user.username} />}
      {rights.manageMembers && (
        <form className="filters" onSubmit={(event) => void add(event)}>
          <input aria-label="User name or e-mail address" placeholder="User name or e-mail address" list="known-users" value={name} onChange={(event) => setName(event.target.value)} required autoComplete="off" />
          <datalist id="known-users">
            {users.data?.filter((user) => !known.has(user.username)).map((user) => <option key={user.id} value={user.username} />)}
          </datalist>
          <select aria-label="Role of the new member" value={role} onChange={(event) => setRole(event.target.value as Member["project_role"])}>
            {rolesToGive(rights, null).map((each) => (
              <option key={each} value={each}>
                {capitalised(each)}
              </option>
            ))}
          </select>
          <Button type="submit">Add member</Button>
        </form>
      )}
    </Section>
  );
}

interface EditedSecret {
  name: string;
  value: string;
  /** What the edit began with; null where it is a new one. */
  before: string | null;
}

function Secrets({ p, then }: { p: string; then: Then }) {
  const query = useQuery(queries.secrets(p));
  const [edited, setEdited] = useState<EditedSecret | null>(null);
  const params = { project_name: p };
  const open = async (secret: Secret) => {
    try {
      const { name, value } = await post("/api/project/{project_name}/secrets/get", { params, body: { name: secret.name } });
      setEdited({ name, value: value ?? "", before: value ?? "" });
    } catch (failed) {
      complain(failed);
    }
  };
  const save = async ({ name, value, before }: EditedSecret) => {
    if (before !== null) {
      const now = await post("/api/project/{project_name}/secrets/get", { params, body: { name } });
      if ((now.value ?? "") !== before) throw new ChangedMeanwhile(`secret ${name}`);
    } else if (query.data?.some((secret) => secret.name === name)) {
      throw new Error(`There is a secret ${name} already.`);
    }
    await post("/api/project/{project_name}/secrets/create_or_update", { params, body: { name, value } });
  };
  const columns: Column<Secret>[] = [
    { name: "Name", cell: (secret) => <span className="name">{secret.name}</span> },
    { name: "Value", cell: () => <span className="muted">••••••••</span> },
    {
      name: "Actions",
      cell: (secret) => (
        <span className="actions start">
          <Button aria-label={`Edit secret ${secret.name}`} onClick={() => void open(secret)}>Edit</Button>
          <Action label="Delete" of={`secret ${secret.name}`} title={`Delete secret ${secret.name}?`} done="Deleted" cli={dstack(["secret", "delete", secret.name, "-y"], p)} act={() => then(post("/api/project/{project_name}/secrets/delete", { params, body: { secrets_names: [secret.name] } }))}>
            <p>Runs that use it fail from then on.</p>
          </Action>
        </span>
      ),
    },
  ];
  return (
    <Section title="Secrets" actions={<Button onClick={() => setEdited({ name: "", value: "", before: null })}>Add secret</Button>}>
      <Failure error={query.error} />
      {query.data?.length ? <Table label="Secrets" columns={columns} rows={query.data} idOf={(secret) => secret.name} /> : query.data && <p className="muted">There are none. Configurations use them as <code>{"${{ secrets.NAME }}"}</code>.</p>}
      {edited && (
        <FormDialog
          title={edited.before === null ? "Add secret" : `Secret ${edited.name}`}
          confirm="Save"
          done="Saved"
          cli={`${dstack(["secret", "set", edited.name || "NAME"])} "$VALUE" --project ${p}`}
          onClose={() => setEdited(null)}
          submit={() => then(save(edited))}
        >
          {edited.before === null && (
            <Field label="Name">{(field) => <input {...field} value={edited.name} onChange={(event) => setEdited({ ...edited, name: event.target.value })} required autoComplete="off" />}</Field>
          )}
          <Field label="Value">{(field) => <textarea {...field} rows={4} value={edited.value} onChange={(event) => setEdited({ ...edited, value: event.target.value })} spellCheck={false} />}</Field>
          {edited.before !== null && edited.value !== "" && <Hidden text={edited.value} label="value" />}
        </FormDialog>
      )}
    </Section>
  );
}
