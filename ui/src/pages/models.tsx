/** Models that services serve, and a place to talk to one. */

import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { type FormEvent, useEffect, useMemo, useRef, useState } from "react";
import { serverUrl } from "../api/client";
import * as queries from "../api/queries";
import type { Run } from "../api/types";
import { chatDelta, serverSentData, type Message } from "../logic/chat";
import { price, resources } from "../logic/format";
import { hourly, nameOf, onlySubmission, servedModel } from "../logic/runs";
import { Alert, Button, Code, Empty, Facts, Failure, Head, Loading, Section, Time } from "../parts/basic";
import { Dialog } from "../parts/dialog";
import { FilterBar, useFilters } from "../parts/filters";
import { type Column, ReadAgain, Table } from "../parts/table";
import { session } from "../session";
import { NotThere } from "./run";

const COLUMNS: Column<Run>[] = [
  {
    name: "Model",
    cell: (run) => (
      <Link to="/projects/$p/models/$runName" params={{ p: run.project_name, runName: nameOf(run) }} className="name">
        {servedModel(run)?.name}
      </Link>
    ),
  },
  {
    name: "Run",
    cell: (run) => (
      <Link to="/projects/$p/runs/$runId" params={{ p: run.project_name, runId: run.id }}>
        {run.project_name}/{nameOf(run)}
      </Link>
    ),
  },
  { name: "Resources", cell: (run) => resources(onlySubmission(run)?.job_provisioning_data?.instance_type.resources) },
  { name: "Price", cell: (run) => price(hourly(run)), isNumber: true },
  { name: "User", cell: (run) => run.user, isMinor: true },
  { name: "Submitted", cell: (run) => <Time at={run.submitted_at} />, isMinor: true },
];

export function ModelsPage() {
  const [filters, set] = useFilters("models");
  const list = queries.useListing(queries.runsOf({ ...filters, active: true }));
  const { more } = list;
  const isMore = more !== undefined;
  useEffect(() => {
    // Models are among all that runs.
    more?.();
    // What reads on is made anew each time.
  }, [isMore]);
  const models = list.rows.filter((run) => servedModel(run) !== null);
  return (
    <>
      <Head title="Models" />
      <FilterBar filters={filters} set={set} withUsers />
      <Failure error={list.error} />
      {!list.data ? (
        list.isPending && <Loading what="models" />
      ) : models.length === 0 ? (
        !list.hasNextPage && (
          <Empty title="No model is served now">
            <p>
              A running service with <code>model</code> in its configuration stands here. <Link to="/runs/launch" search={{ kind: "service" } as never}>Launch one</Link>
            </p>
          </Empty>
        )
      ) : (
        <Table label="Models" columns={COLUMNS} rows={models} idOf={(run) => run.id} />
      )}
      <ReadAgain again={list.again} />
    </>
  );
}

export function ModelPage() {
  const { p, runName } = useParams({ strict: false }) as { p: string; runName: string };
  const { data: run, error } = useQuery(queries.runByName(p, runName));
  const [isCodeOpen, setCodeOpen] = useState(false);
  const served = run && servedModel(run);
  // What was said stays on the page when the model goes, which is told at once.
  const of = `${p}/${runName}`;
  const [last, setLast] = useState(served ? { of, model: served } : null);
  if (served && (of !== last?.of || served.base_url !== last.model.base_url || served.name !== last.model.name)) setLast({ of, model: served });
  if (!run) return error ? <NotThere what="model" error={error} /> : <Loading what="the model" />;
  const model = served ?? (last?.of === of ? last.model : null);
  if (!model) {
    return (
      <>
        <Head title={runName} />
        <Empty title="It serves no model now">
          <p>
            Its run is {run.status}: <Link to="/projects/$p/runs/$runId" params={{ p, runId: run.id }}>see the run</Link>
          </p>
        </Empty>
      </>
    );
  }
  const url = new URL(model.base_url, `${serverUrl()}/`).href.replace(/\/$/, "");
  return (
    <>
      <Head title={model.name} above={<Link to="/models">Models</Link>}>
        <Button onClick={() => setCodeOpen(true)}>Code</Button>
      </Head>
      <Section title="General">
        <Facts
          facts={[
            ["Run", <Link key="r" to="/projects/$p/runs/$runId" params={{ p, runId: run.id }}>{nameOf(run)}</Link>],
            ["Type", run.service?.model?.type],
            ["Base URL", url],
          ]}
        />
      </Section>
      {run.service?.notice && <Alert kind="warning">{run.service.notice}</Alert>}
      {!served && (
        <Alert kind="warning" title="It is served no more">
          Its run is {run.status}: <Link to="/projects/$p/runs/$runId" params={{ p, runId: run.id }}>see the run</Link>
        </Alert>
      )}
      {new URL(url).origin === location.origin ? (
        <Chat key={url} url={url} model={model.name} />
      ) : (
        <Alert title="This page talks to its own server only">The model is served at another address. “Code” has what a program needs to talk to it.</Alert>
      )}
      {isCodeOpen && (
        <Dialog title={`Talk to ${model.name}`} onClose={() => setCodeOpen(false)}>
          <h3>Python</h3>
          <Code label="Python" text={`from openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(url)}, api_key="YOUR_DSTACK_TOKEN")\nanswer = client.chat.completions.create(\n    model=${JSON.stringify(model.name)},\n    messages=[{"role": "user", "content": "Hello"}],\n)\nprint(answer.choices[0].message.content)\n`} />
          <h3>curl</h3>
          <Code label="curl" text={`curl ${url}/chat/completions \\\n  -H "Authorization: Bearer $DSTACK_TOKEN" \\\n  -H "Content-Type: application/json" \\\n  -d '${JSON.stringify({ model: model.name, messages: [{ role: "user", content: "Hello" }] }).replaceAll("'", "'\\''")}'`} />
          <div className="dialog-buttons">
            <Button onClick={() => setCodeOpen(false)}>Close</Button>
          </div>
        </Dialog>
      )}
    </>
  );
}

const MAX_TOKENS = 512;

function Chat({ url, model }: { url: string; model: string }) {
  const [system, setSystem] = useState("");
  const [messages, setMessages] = useState<Message[]>([]);
  const [question, setQuestion] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const abort = useRef<AbortController>(null);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => () => abort.current?.abort(), []);

  const send = async (event: FormEvent) => {
    event.preventDefault();
    if (question.trim() === "" || isBusy) return;
    const asked: Message[] = [...messages, { role: "user", content: question }];
    setMessages([...asked, { role: "assistant", content: "" }]);
    setQuestion("");
    setBusy(true);
    setError(null);
    abort.current = new AbortController();
    try {
      const history = system.trim() === "" ? asked : [{ role: "system", content: system }, ...asked];
      const response = await fetch(`${url}/chat/completions`, {
        method: "POST",
        signal: abort.current.signal,
        headers: { "Content-Type": "application/json", Authorization: `Bearer ${session.token() ?? ""}` },
        body: JSON.stringify({ model, messages: history, stream: true, max_tokens: MAX_TOKENS }),
      });
      if (!response.ok || !response.body) throw new Error(`The model answered with status ${response.status}: ${(await response.text()).slice(0, 500)}`);
      let answer = "";
      for await (const data of serverSentData(response.body)) {
        answer += chatDelta(data);
        setMessages([...asked, { role: "assistant", content: answer }]);
      }
    } catch (failed) {
      if (!(failed instanceof DOMException && failed.name === "AbortError")) setError(failed);
      setMessages((known) => known.filter((message) => message.role === "user" || message.content !== ""));
    }
    setBusy(false);
  };
  const bubbles = useMemo(() => messages.map((message, at) => <Bubble key={at} message={message} />), [messages]);
  return (
    <Section title="Chat" actions={messages.length > 0 && <Button onClick={() => { abort.current?.abort(); setMessages([]); }}>Clear</Button>}>
      <div className="chat">
        <label className="field">
          System
          <textarea value={system} rows={3} onChange={(event) => setSystem(event.target.value)} placeholder="How the model is to behave" />
        </label>
        <div className="bubbles" role="log" aria-label="Chat" aria-live="polite" tabIndex={0}>
          {bubbles}
        </div>
        <Failure error={error} title="The model did not answer" />
        <form ref={form} onSubmit={(event) => void send(event)}>
          <textarea
            aria-label="Message"
            rows={2}
            value={question}
            placeholder="Enter sends, Shift+Enter begins a new line"
            onChange={(event) => setQuestion(event.target.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.nativeEvent.isComposing) {
                event.preventDefault();
                form.current?.requestSubmit();
              }
            }}
          />
          {isBusy ? <Button onClick={() => abort.current?.abort()}>Stop</Button> : <Button type="submit" kind="primary">Send</Button>}
        </form>
      </div>
    </Section>
  );
}

function Bubble({ message }: { message: Message }) {
  // Every second piece between fences is code.
  const pieces = message.content.split(/```[^\n]*\n?/);
  return (
    <div className={`bubble ${message.role}`}>
      <span className="muted">{message.role === "user" ? "You" : "Model"}</span>
      {pieces.map((piece, at) => (at % 2 === 1 ? <pre key={at} tabIndex={0}>{piece}</pre> : piece.trim() && <p key={at}>{piece.trim()}</p>))}
      {message.content === "" && <p className="muted">…</p>}
    </div>
  );
}
