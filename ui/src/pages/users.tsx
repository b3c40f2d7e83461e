/** Users: all of them, a new one, and the settings of one, with tokens and SSH keys. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { post } from "../api/client";
import * as queries from "../api/queries";
import type { Project, PublicKey, User, UserToken } from "../api/types";
import { dstack } from "../logic/cli";
import { ChangedMeanwhile, changedSince } from "../logic/edits";
import { capitalised, count, words } from "../logic/format";
import { exact } from "../logic/time";
import { Alert, Button, Code, Empty, Facts, Failure, Field, Head, Hidden, Loading, Section, Tabs, Time, Toggle } from "../parts/basic";
import { Action, Dialog, FormDialog } from "../parts/dialog";
import { type Column, Most, Table, useSelection } from "../parts/table";
import { session } from "../session";
import { NotThere } from "./run";

const COLUMNS: Column<User>[] = [
  {
    name: "Name",
    cell: (user) => (
      <Link to="/users/$u" params={{ u: user.username }} className="name">
        {user.username}
      </Link>
    ),
  },
  { name: "E-mail", cell: (user) => user.email ?? "" },
  { name: "Role", cell: (user) => capitalised(user.global_role) },
  { name: "Active", cell: (user) => (user.active ? "yes" : "no") },
  { name: "Created", cell: (user) => <Time at={user.created_at} />, isMinor: true },
];

export function UsersPage() {
  const [name, setName] = useState("");
  const client = useQueryClient();
  const users = useQuery(queries.users());
  const me = useQuery(queries.me());
  const isAdmin = me.data?.global_role === "admin";
  const shown = (users.data ?? []).filter((user) => `${user.username} ${user.email ?? ""}`.toLowerCase().includes(name.toLowerCase()));
  const selection = useSelection(shown, (user) => user.id);
  const remove = async () => {
    await post("/api/users/delete", { body: { users: selection.chosen.map((user) => user.username) } });
    await queries.changed(client, "users");
    selection.set(new Set());
  };
  return (
    <>
      <Head title="Users">
        {selection.chosen.length > 0 && (
          <Action label="Delete" title={`Delete ${count(selection.chosen.length, "user")}?`} done="Deleted" act={remove}>
            <p>{selection.chosen.map((user) => user.username).join(", ")}: their tokens stop working, and they leave their projects. Their runs go on.</p>
          </Action>
        )}
        {isAdmin && (
          <Link to="/users/add" className="button primary">
            Add user
          </Link>
        )}
      </Head>
      <div className="filters">
        <input type="search" aria-label="Search by name or address" placeholder="Search" value={name} onChange={(event) => setName(event.target.value)} />
        <span className="muted" role="status">
          {users.data && count(shown.length, "user")}
        </span>
      </div>
      <Failure error={users.error} />
      {!users.data ? users.isPending && <Loading what="users" /> : shown.length === 0 ? <Empty title="Nobody has this name" /> : <Table label="Users" columns={COLUMNS} rows={shown} idOf={(user) => user.id} nameOf={(user) => user.username} selection={isAdmin ? selection : undefined} />}
      <Most rows={users.data} what="users" />
    </>
  );
}

function useUser(name: string) {
  return useQuery({
    queryKey: ["user", name],
    queryFn: ({ signal }) => post("/api/users/get_user", { body: { username: name }, signal }),
  });
}

export function EditUserPage() {
  const { u } = useParams({ strict: false }) as { u?: string };
  const user = useQuery({
    queryKey: ["edited user", u],
    queryFn: ({ signal }) => post("/api/users/get_user", { body: { username: u ?? "" }, signal }),
    enabled: u !== undefined,
    ...queries.FOR_EDITING,
  });
  if (u !== undefined && !(user.data && user.isFetchedAfterMount)) return user.error ? <NotThere what="user" error={user.error} /> : <Loading what="the user" />;
  return <UserForm key={u} start={user.data} />;
}

function UserForm({ start }: { start: User | undefined }) {
  // What the edit began with, whatever is read meanwhile.
  const [known] = useState(start);
  const [name, setName] = useState(known?.username ?? "");
  const [email, setEmail] = useState(known?.email ?? "");
  const [role, setRole] = useState<User["global_role"]>(known?.global_role ?? "user");
  const [active, setActive] = useState(known?.active ?? true);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const client = useQueryClient();
  const navigate = useNavigate();
  const save = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const body = { username: name, global_role: role, email: email.trim() || null, active };
      if (known) {
        const now = await post("/api/users/get_user", { body: { username: name } });
        const changed = changedSince<User, keyof User>(known, now, ["id", "global_role", "email", "active"]);
        if (changed.length > 0) throw new ChangedMeanwhile(name, changed.map(words));
      }
      await post(known ? "/api/users/update" : "/api/users/create", { body });
      await queries.changed(client, "users", "user", "me");
      await navigate({ to: "/users/$u", params: { u: name } });
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return (
    <>
      <Head title={known ? `Edit ${known.username}` : "Add user"} above={<Link to="/users">Users</Link>} />
      <form className="card narrow" onSubmit={(event) => void save(event)}>
        {!known && (
          <Field label="Name" hint="Latin letters, digits, - and _; 60 at most.">
            {(field) => <input {...field} value={name} onChange={(event) => setName(event.target.value)} required pattern="[a-zA-Z0-9_\-]{1,60}" autoFocus autoComplete="off" />}
          </Field>
        )}
        <Field label="E-mail">{(field) => <input {...field} type="email" value={email} onChange={(event) => setEmail(event.target.value)} autoComplete="off" />}</Field>
        <Field label="Role" hint="Administrators may do everything, in all projects.">
          {(field) => (
            <select {...field} value={role} onChange={(event) => setRole(event.target.value as User["global_role"])}>
              <option value="user">User</option>
              <option value="admin">Administrator</option>
            </select>
          )}
        </Field>
        <Toggle label="May sign in" checked={active} onChange={setActive} />
        <Failure error={error} />
        <div className="dialog-buttons">
          <Button type="submit" kind="primary" busy={isBusy}>
            Save
          </Button>
        </div>
      </form>
    </>
  );
}

const OWN_PROJECTS: Column<Project>[] = [
  { name: "Name", cell: (project) => <Link to="/projects/$p" params={{ p: project.project_name }} className="name">{project.project_name}</Link> },
  { name: "Role", cell: (project) => capitalised(project.members[0]?.project_role ?? "") },
  { name: "Owner", cell: (project) => project.owner.username },
];

export function UserView({ view }: { view: "settings" | "projects" }) {
  const { u } = useParams({ strict: false }) as { u: string };
  const me = useQuery(queries.me());
  const user = useUser(u);
  const client = useQueryClient();
  if (!user.data || !me.data) return user.error ? <NotThere what="user" error={user.error} /> : <Loading what="the user" />;
  const isSelf = me.data.username === u;
  const isAdmin = me.data.global_role === "admin";
  const rotate = async () => {
    const { creds } = await post("/api/users/refresh_token", { body: { username: u } });
    // The session goes on with the new one, unless it has an API token of its own.
    if (isSelf && session.token() === user.data.creds.token) session.signIn(creds.token);
    await queries.changed(client, "user", "me");
  };
  return (
    <>
      <Head title={u} above={isAdmin ? <Link to="/users">Users</Link> : undefined}>
        {isAdmin && (
          <Link to="/users/$u/edit" params={{ u }} className="button">
            Edit
          </Link>
        )}
      </Head>
      <Tabs
        label="Views of the user"
        tabs={[
          { name: "Settings", link: { to: "/users/$u", params: { u } } },
          { name: "Projects", link: { to: "/users/$u/projects", params: { u } } },
        ]}
      />
      {view === "projects" ? (
        <UserProjects name={u} />
      ) : (
        <>
          <Section title="Account">
            <Facts
              facts={[
                ["E-mail", user.data.email],
                ["Role", capitalised(user.data.global_role)],
                ["Active", user.data.active ? "yes" : "no"],
                ["Created", <Time key="c" at={user.data.created_at} />],
              ]}
            />
          </Section>
          <Section
            title="Token"
            actions={
              <Action label="Replace" title="Replace the token?" done="Replaced" act={rotate}>
                <p>The old one stops working at once, in every command line and program that has it.</p>
              </Action>
            }
          >
            {user.data.creds.token ? <Hidden text={user.data.creds.token} label="token" /> : <p className="muted">It is not shown to API tokens.</p>}
          </Section>
          {(isSelf || isAdmin) && <Tokens name={u} isSelf={isSelf} />}
          {isSelf && <Keys />}
        </>
      )}
    </>
  );
}

function UserProjects({ name }: { name: string }) {
  const query = useQuery({
    queryKey: ["projects", "of", name],
    queryFn: async ({ signal }) => (await post("/api/projects/list", { body: { username: name, include_not_joined: false }, signal })) as Project[],
  });
  const own = (query.data ?? []).filter((project) => project.members.length > 0);
  return (
    <>
      <Failure error={query.error} />
      {!query.data ? query.isPending && <Loading what="projects" /> : own.length === 0 ? <Empty title="In no project" /> : <Table label="Projects" columns={OWN_PROJECTS} rows={own} idOf={(project) => project.project_id} />}
    </>
  );
}

const DAYS: [string, number | null][] = [
  ["30 days", 30],
  ["90 days", 90],
  ["A year", 365],
  ["Never", null],
];

function Tokens({ name, isSelf }: { name: string; isSelf: boolean }) {
  const client = useQueryClient();
  const key = ["tokens", name];
  const query = useQuery({ queryKey: key, queryFn: ({ signal }) => post("/api/users/tokens/list", { body: isSelf ? {} : { username: name }, signal }) });
  const projects = useQuery(queries.projects());
  const [form, setForm] = useState<{ name: string; readOnly: boolean; project: string; days: string } | null>(null);
  const [made, setMade] = useState<string | null>(null);
  const create = async () => {
    if (!form) return;
    const answer = await post("/api/users/tokens/create", {
      body: { name: form.name, read_only: form.readOnly, project_name: form.project || null, expires_in: form.days === "" ? null : Number(form.days) * 86400 },
    });
    setMade(answer.token);
    await client.invalidateQueries({ queryKey: key });
  };
  const columns: Column<UserToken>[] = [
    { name: "Name", cell: (token) => <span className="name">{token.name}</span> },
    { name: "Good for", cell: (token) => `${token.read_only ? "reading" : "everything"}${token.project_name ? ` in ${token.project_name}` : ""}` },
    { name: "Expires", cell: (token) => (token.expires_at ? exact(token.expires_at) : "never") },
    { name: "Made", cell: (token) => <Time at={token.created_at} />, isMinor: true },
    {
      name: "Actions",
      cell: (token) => (
        <Action
          label="Delete"
          of={`token ${token.name}`}
          title={`Delete token ${token.name}?`}
          done="Deleted"
          cli={isSelf ? dstack(["token", "delete", token.name, "-y"]) : undefined}
          act={async () => {
            await post("/api/users/tokens/delete", { body: { names: [token.name], ...(!isSelf && { username: name }) } });
            await client.invalidateQueries({ queryKey: key });
          }}
        >
          <p>It stops working at once.</p>
        </Action>
      ),
    },
  ];
  return (
    <Section title="API tokens" actions={isSelf && <Button onClick={() => setForm({ name: "", readOnly: true, project: "", days: "90" })}>Make token</Button>}>
      <Failure error={query.error} />
      {query.data?.length ? <Table label="API tokens" columns={columns} rows={query.data} idOf={(token) => token.id} /> : query.data && <p className="muted">There are none. Programs get one of their own, which may do less and can be taken back.</p>}
      {form && !made && (
        <FormDialog
          title="Make an API token"
          confirm="Make"
          cli={dstack(["token", "create", form.name || "NAME", ...(form.readOnly ? ["--read-only"] : []), ...(form.days ? ["--expires", `${form.days}d`] : []), ...(form.project ? ["--project", form.project] : [])])}
          onClose={() => setForm(null)}
          submit={create}
        >
          <Field label="Name">{(field) => <input {...field} value={form.name} onChange={(event) => setForm({ ...form, name: event.target.value })} required autoComplete="off" />}</Field>
          <Toggle label="For reading only" checked={form.readOnly} onChange={(readOnly) => setForm({ ...form, readOnly })} />
          <Field label="Good for">
            {(field) => (
              <select {...field} value={form.project} onChange={(event) => setForm({ ...form, project: event.target.value })}>
                <option value="">All my projects</option>
                {projects.data?.map((each) => (
                  <option key={each.project_id} value={each.project_name}>
                    Only {each.project_name}
                  </option>
                ))}
              </select>
            )}
          </Field>
          <Field label="Expires">
            {(field) => (
              <select {...field} value={form.days} onChange={(event) => setForm({ ...form, days: event.target.value })}>
                {DAYS.map(([label, days]) => (
                  <option key={label} value={days ?? ""}>
                    {label}
                  </option>
                ))}
              </select>
            )}
          </Field>
        </FormDialog>
      )}
      {made && (
        <Dialog
          title="The token"
          onClose={() => {
            setMade(null);
            setForm(null);
          }}
        >
          <Alert kind="good">It is shown now and never again.</Alert>
          <Code text={made} label="Token" />
          <div className="dialog-buttons">
            <Button
              kind="primary"
              onClick={() => {
                setMade(null);
                setForm(null);
              }}
            >
              I have it
            </Button>
          </div>
        </Dialog>
      )}
    </Section>
  );
}

function Keys() {
  const client = useQueryClient();
  const query = useQuery({ queryKey: ["keys"], queryFn: ({ signal }) => post("/api/users/public_keys/list", { signal }) });
  const [form, setForm] = useState<{ name: string; key: string } | null>(null);
  const again = () => client.invalidateQueries({ queryKey: ["keys"] });
  const columns: Column<PublicKey>[] = [
    { name: "Title", cell: (key) => <span className="name">{key.name}</span> },
    { name: "Fingerprint", cell: (key) => <code>{key.fingerprint}</code> },
    { name: "Type", cell: (key) => key.type, isMinor: true },
    { name: "Added", cell: (key) => <Time at={key.added_at} />, isMinor: true },
    {
      name: "Actions",
      cell: (key) => (
        <Action label="Delete" of={`key ${key.name}`} title={`Delete key ${key.name}?`} done="Deleted" act={() => post("/api/users/public_keys/delete", { body: { ids: [key.id] } }).then(again)}>
          <p>Whoever has the private key does not get into your runs any more.</p>
        </Action>
      ),
    },
  ];
  return (
    <Section title="SSH keys" actions={<Button onClick={() => setForm({ name: "", key: "" })}>Add key</Button>}>
      <Failure error={query.error} />
      {query.data?.length ? <Table label="SSH keys" columns={columns} rows={query.data} idOf={(key) => key.id} /> : query.data && <p className="muted">There are none. Whoever has the private key gets into your runs through the SSH proxy.</p>}
      {form && (
        <FormDialog title="Add SSH key" confirm="Add" done="Added" onClose={() => setForm(null)} submit={() => post("/api/users/public_keys/add", { body: { key: form.key, name: form.name.trim() || null } }).then(again)}>
          <Field label="Title" hint="Its comment when left out.">{(field) => <input {...field} value={form.name} onChange={(event) => setForm({ ...form, name: event.target.value })} autoComplete="off" />}</Field>
          <Field label="Public key" hint="One line, as in ~/.ssh/id_ed25519.pub.">
            {(field) => <textarea {...field} rows={4} value={form.key} onChange={(event) => setForm({ ...form, key: event.target.value })} required spellCheck={false} />}
          </Field>
        </FormDialog>
      )}
    </Section>
  );
}
