/** A backend: the form of its configuration, the same as YAML, and what it offers. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useLocation, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useEffect, useMemo, useRef, useState } from "react";
import { ApiError, post, type Problem } from "../api/client";
import * as queries from "../api/queries";
import { type BackendType, backendType, backendTypes, begun, nextAsk } from "../logic/backends";
import { complete, type Config, fieldAt, isWithheld, type Path, placed, tidy, toYaml, unknownFields, unready, valueAt, withoutSecrets } from "../logic/config";
import { located, readDraft } from "../logic/draft";
import { ChangedMeanwhile } from "../logic/edits";
import { count } from "../logic/format";
import { Alert, Button, Copy, Empty, Failure, Head, Loading, Notices, Section } from "../parts/basic";
import { fetched } from "../parts/fetched";
import { focusField, type Form, FormFields } from "../parts/fields";
import { OfferTable } from "../parts/offer-table";
import { say } from "../toasts";
import { NotThere } from "./run";

const Yaml = lazy(() => fetched(import("../parts/yaml")));

function Above({ p }: { p: string }) {
  return <Link to="/projects/$p" params={{ p }}>{p}</Link>;
}

/** A new backend: first its type. */
export function AddBackendPage() {
  const { p } = useParams({ strict: false }) as { p: string };
  const { type } = useSearch({ strict: false }) as { type?: unknown };
  const types = useQuery({ queryKey: ["backend types"], queryFn: ({ signal }) => post("/api/backends/list_types", { signal }), staleTime: Infinity });
  const project = useQuery(queries.project(p));
  const [wanted, setWanted] = useState("");
  const all = useMemo(() => backendTypes(types.data ?? []), [types.data]);
  const chosen = all.find((each) => each.type === type);
  const taken = new Set(project.data?.backends.map((backend) => backend.name as string));
  const shown = all.filter((each) => `${each.name} ${each.type}`.toLowerCase().includes(wanted.trim().toLowerCase()));
  if (chosen) {
    return (
      <>
        <Head title={`Add backend: ${chosen.name}`} above={<><Above p={p} /> / <Link to="/projects/$p/backends/add" params={{ p }}>Another type</Link></>} />
        {taken.has(chosen.type) && (
          <Alert kind="warning">
            The project has this backend already: <Link to="/projects/$p/backends/$type" params={{ p, type: chosen.type }}>change it</Link>.
          </Alert>
        )}
        <BackendForm key={chosen.type} p={p} kind={chosen} before={undefined} />
      </>
    );
  }
  return (
    <>
      <Head title="Add backend" above={<Above p={p} />} />
      <p className="lead">A backend is an account at a cloud, in which the server makes machines for this project. Which one is it?</p>
      <div className="filters">
        <input type="search" aria-label="Search by name" placeholder="Search" value={wanted} onChange={(event) => setWanted(event.target.value)} />
        <span className="muted" role="status">{types.data && count(shown.length, "type")}</span>
      </div>
      <Failure error={types.error} title="The types of backends could not be read" />
      {types.isPending && <Loading what="types of backends" />}
      <ul className="tiles">
        {shown.map((each) => (
          <li key={each.type}>
            <Link to={taken.has(each.type) ? "/projects/$p/backends/$type" : "/projects/$p/backends/add"} params={{ p, type: each.type }} search={(taken.has(each.type) ? {} : { type: each.type }) as never} className="tile">
              <strong>{each.name}</strong>
              <span className="muted">
                {each.type}
                {taken.has(each.type) ? " · the project has it" : each.note ? ` · ${each.note}` : ""}
              </span>
            </Link>
          </li>
        ))}
      </ul>
      {types.data && shown.length === 0 && <Empty title="This server knows no such type" />}
    </>
  );
}

/** A backend of the project. */
export function BackendPage() {
  const { p, type } = useParams({ strict: false }) as { p: string; type: string };
  return <OneBackend key={`${p} ${type}`} p={p} type={type} />;
}

function OneBackend({ p, type }: { p: string; type: string }) {
  const isNew = useLocation({ select: (location) => (location.state as { isSaved?: boolean }).isSaved === true });
  const [saves, setSaves] = useState(isNew ? 1 : 0);
  const navigate = useNavigate();
  useEffect(() => {
    // It is said once, and not again when the page is loaded anew.
    if (isNew) void navigate({ to: ".", replace: true, state: {} as never });
  }, [isNew, navigate]);
  const known = useQuery({ queryKey: ["edited backend", p, type], queryFn: ({ signal }) => configOf(p, type, signal), ...queries.FOR_EDITING });
  const kind = backendType(type);
  if (!(known.data !== undefined && known.isFetchedAfterMount)) return known.error ? <NotThere what="backend" error={known.error} /> : <Loading what="its configuration" />;
  const name = kind?.name ?? type;
  const after = async () => {
    const { isError, error } = await known.refetch();
    if (isError) throw error;
    setSaves(saves + 1);
  };
  return (
    <>
      <Head title={kind ? `${name}` : `Backend ${type}`} above={<><Above p={p} /> / Backends</>} />
      {saves > 0 && <Saved key={saves} name={name} />}
      <Offers p={p} type={type} save={saves} />
      {kind ? <BackendForm key={saves} p={p} kind={kind} before={known.data} after={after} /> : <Alert kind="warning">This page knows no fields of backends of type {type}.</Alert>}
    </>
  );
}

function Saved({ name }: { name: string }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => place.current?.focus(), []);
  return (
    <div ref={place} tabIndex={-1} role="status" className="focusable">
      <Alert kind="good" title="Saved: the credentials were accepted">
        They were tried before anything was saved. What {name} offers comes below.
      </Alert>
    </div>
  );
}

/** Its configuration as it is in force, with secrets: those are not shown. */
async function configOf(project_name: string, backend_name: string, signal?: AbortSignal): Promise<Config> {
  const config = await post("/api/project/{project_name}/backends/{backend_name}/config_info", { params: { project_name, backend_name }, ...(signal && { signal }) });
  return tidy(config as unknown as Config);
}

function Offers({ p, type, save }: { p: string; type: string; save: number }) {
  const [round, setRound] = useState(0);
  const configuration = { type: "task", image: "scratch", commands: [":"], backends: [type], resources: { cpu: "1..", memory: "0..", disk: null, gpu: "0.." } };
  const queryKey = ["offers", p, "of backend", type, save, round];
  const query = useQuery({
    queryKey,
    queryFn: ({ signal }) =>
      post("/api/project/{project_name}/runs/get_plan", {
        params: { project_name: p },
        body: { run_spec: { configuration, profile: { name: "default" }, ssh_key_pub: "(dummy)" } as never, for_offers_only: true, full_offers: true, max_offers: 8 },
        signal,
      }),
    // Who comes again begins anew.
    gcTime: 0,
    // How often was asked is shown, too.
    notifyOnChangeProps: "all",
    refetchInterval: ({ state }) => ((state.data?.job_plans[0]?.total_offers ?? 0) > 0 ? false : (nextAsk(state.dataUpdateCount + state.errorUpdateCount) ?? false)),
  });
  const state = useQueryClient().getQueryState(queryKey);
  const isAsking = nextAsk((state?.dataUpdateCount ?? 0) + (state?.errorUpdateCount ?? 0)) !== null;
  const plan = query.data?.job_plans[0];
  const hasOffers = (plan?.total_offers ?? 0) > 0;
  return (
    <Section title="What it offers" actions={<Link to="/offers" search={{ project_name: p } as never}>All offers of the project</Link>}>
      <Failure error={query.error} title="Offers could not be read" />
      {query.isPending && <Loading what="offers" />}
      {plan && hasOffers && <OfferTable offers={plan.offers} total={plan.total_offers} />}
      <Notices notices={query.data?.notices} />
      {plan && !hasOffers && (
        <p role="status">
          Nothing yet. {isAsking ? "It is asked for again, less and less often" : "It is not asked for again by itself"}; where nothing comes, <Link to="/doctor">Doctor</Link> may know why.
        </p>
      )}
      {!query.isPending && !hasOffers && !isAsking && (
        <div>
          <Button onClick={() => setRound(round + 1)}>Ask again</Button>
        </div>
      )}
    </Section>
  );
}

interface FormProps {
  p: string;
  kind: BackendType;
  /** What the edit began with, with its secrets; unset where it is a new one. */
  before: Config | undefined;
  /** Shows what was saved, read anew; fails where that cannot be read. */
  after?: () => Promise<void>;
}

function BackendForm({ p, kind: startKind, before: start, after }: FormProps) {
  const [before] = useState(start);
  const [config, setConfig] = useState<Config>(() => (before ? withoutSecrets(startKind.fields, before) : begun(startKind)));
  /** Unset while the form is shown. */
  const [text, setText] = useState<string | null>(null);
  const [lastText, setLastText] = useState("");
  const [problems, setProblems] = useState<Problem[]>([]);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  /** Why what was saved could not be read again. */
  const [unread, setUnread] = useState<unknown>(null);
  const [asked, setAsked] = useState<Path | null>(null);
  const [isMoreOpen, setMoreOpen] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const client = useQueryClient();
  const navigate = useNavigate();
  const draft = useMemo(() => (text === null ? null : readDraft(text)), [text]);
  const now = draft === null ? config : draft.configuration;
  // Somebody may have written another type.
  const kind = backendType(String(now?.["type"] ?? startKind.type)) ?? startKind;
  const { type, fields } = kind;
  const found = placed(fields, now ?? {}, problems);
  const marks = useMemo(() => (text === null || draft === null ? [] : draft.problems.length > 0 ? draft.problems : located(text, problems.filter(({ place }) => place.length > 0))), [text, draft, problems]);
  useEffect(() => {
    if (asked === null) return;
    focusField(form.current, asked);
    setAsked(null);
  }, [asked]);

  const showYaml = () => {
    setText(toYaml(config, lastText));
  };
  const showForm = () => {
    if (text === null || !draft?.configuration) return;
    setConfig(draft.configuration);
    setLastText(text);
    setText(null);
  };
  const refuse = (refused: Problem[], config: Config, failed: unknown) => {
    setProblems(refused);
    const { first, others } = placed(fields, config, refused);
    // What stands at a field is said there; in the editor all of it is said below.
    const isAllPlaced = text === null && others.length === 0 && refused.length > 0;
    setError(isAllPlaced ? null : failed instanceof ApiError && text === null ? new ApiError(failed.status, others, failed.code) : failed);
    if (text === null) setAsked(first);
  };
  const showSaved = async (show: () => Promise<void>) => {
    try {
      await show();
      setUnread(null);
    } catch (failed) {
      setUnread(failed);
    }
  };
  const readAgain = async () => {
    if (!after) return;
    setBusy(true);
    await showSaved(after);
    setBusy(false);
  };
  const save = async () => {
    setError(null);
    setProblems([]);
    if (now === null) return;
    if (before && type !== startKind.type) {
      setError(new Error(`This is the backend ${startKind.type}. Add another one for ${type}.`));
      return;
    }
    const sent = complete(fields, now, before);
    const missing = unready(fields, now, before);
    if (missing.length > 0) {
      refuse(missing, now, new ApiError(422, missing, null));
      return;
    }
    setBusy(true);
    const params = { project_name: p };
    try {
      if (before) {
        const current = await configOf(p, type);
        if (JSON.stringify(current) !== JSON.stringify(before)) throw new ChangedMeanwhile("the backend");
      }
      await post(before ? "/api/project/{project_name}/backends/update" : "/api/project/{project_name}/backends/create", { params, body: sent as never });
      await queries.changed(client, "project", "offers");
      say("Saved: its credentials were accepted");
      if (after) await showSaved(after);
      else await navigate({ to: "/projects/$p/backends/$type", params: { p, type: String(sent["type"]) }, state: { isSaved: true } as never });
    } catch (failed) {
      if (failed instanceof ApiError) refuse(failed.problems, now, failed);
      else setError(failed);
    }
    setBusy(false);
  };
  const latest = useRef(config);
  latest.current = config;
  const change: Form["change"] = (wanted) => {
    const last = latest.current;
    const next = typeof wanted === "function" ? wanted(last) : wanted;
    latest.current = next;
    setConfig(next);
    // What is said of a field is not true any more once it says something else.
    const isSame = (path: Path) => JSON.stringify(valueAt(last, path)) === JSON.stringify(valueAt(next, path));
    // So it is with a secret that was to be typed for another address, once the address is what it was.
    const isSettled = (path: Path) => isWithheld(before, last, path) && !isWithheld(before, next, path);
    setProblems((all) =>
      all.filter(({ place }) => {
        const path = fieldAt(fields, last, place) ?? [];
        return isSame(path) && !isSettled(path);
      }),
    );
  };
  const changeText = (next: string) => {
    setText(next);
    setProblems([]);
  };
  const shared: Form = { config, change, before, errors: found.at };
  // What is needed, credentials last, then regions; the rest is folded away.
  const rank = ({ key, isRequired }: { key: string; isRequired: boolean }) => (key === "creds" ? 1 : isRequired ? 0 : key === "regions" ? 2 : 3);
  const main = fields.filter((field) => rank(field) < 3).sort((a, b) => rank(a) - rank(b));
  const more = fields.filter((field) => rank(field) === 3);
  const isFaultInMore = more.some((field) => [...found.at.keys()].some((key) => (JSON.parse(key) as Path)[0] === field.key));
  const others = unknownFields(fields, config);
  const isFixed = isBusy || unread !== null;
  return (
    <form
      ref={form}
      noValidate
      className="card backend-form"
      aria-label={`Configuration of ${kind.name}`}
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      {/* What is typed while it is saved would be lost. */}
      <fieldset className="whole" disabled={isFixed}>
        <div className="card-head">
          <h2>{before ? "Configuration" : "Its configuration"}</h2>
          <div className="actions">
            <Copy text={text ?? toYaml(withoutSecrets(fields, config), "")} label="Copy YAML" />
            <Button aria-pressed={text !== null} disabled={text !== null && !draft?.configuration} onClick={text === null ? showYaml : showForm}>
              {text === null ? "As YAML" : "As a form"}
            </Button>
          </div>
        </div>
        {kind.note && <Alert kind="warning">{kind.name}: {kind.note}.</Alert>}
        {text === null ? (
          <>
            <p className="hint">Fields with * are needed. Secrets are encrypted in the server's database, and not shown again.</p>
            <FormFields form={shared} fields={main} path={[]} />
            {more.length > 0 && (
              <details open={isMoreOpen || isFaultInMore} onToggle={(event) => setMoreOpen(event.currentTarget.open)}>
                <summary>More settings ({more.length})</summary>
                <FormFields form={shared} fields={more} path={[]} />
              </details>
            )}
            {others.length > 0 && <Alert>There are fields that this form does not have: {others.join(", ")}. They stay as they are; see them as YAML.</Alert>}
          </>
        ) : (
          <>
            {before && <p className="hint">Secrets that were saved are not here: they stay as they are, unless you write others.</p>}
            <Suspense fallback={<Loading what="the editor" />}>
              <Yaml label="Configuration of the backend" text={text} onChange={changeText} marks={marks} isReadOnly={isFixed} />
            </Suspense>
            {draft?.problems.map((problem, at) => (
              <Alert key={at} kind="warning" title="This is not YAML yet">
                {problem.text}
              </Alert>
            ))}
          </>
        )}
      </fieldset>
      <Failure error={error} title={error instanceof ChangedMeanwhile ? "Not saved" : "It was not saved"} />
      {unread !== null && (
        <>
          <Failure error={unread} title="It was saved, and could not be read again since" />
          <p>
            The form stands as it was sent, and can be changed once it is read. <Button busy={isBusy} onClick={() => void readAgain()}>Read again</Button>
          </p>
        </>
      )}
      <p className="hint">
        Where the server's <code>config.yml</code> lists <code>backends</code> of the project {p}, it has those, and no others, after every start of the server: write this one there, too (<strong>Copy YAML</strong>, and its secrets), or it is removed then.
      </p>
      <div className="dialog-buttons">
        <span className="hint">Saving asks the cloud whether it takes the credentials.</span>
        <Button type="submit" kind="primary" busy={isBusy} disabled={isFixed || now === null}>
          Save
        </Button>
      </div>
    </form>
  );
}
