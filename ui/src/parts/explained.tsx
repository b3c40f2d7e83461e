/** Why a job is placed where it is, as a picture and in words, and what to change when it cannot be placed. */

import { useQuery } from "@tanstack/react-query";
import { post } from "../api/client";
import type { JobExplanation, Run } from "../api/types";
import { count, money, price } from "../logic/format";
import { barOf, CHECK_NAMES, CHECK_ORDER, cheapestOf, type Funnel, funnels } from "../logic/funnel";
import { Failure, Loading, Section } from "./basic";
import { type Column, Table } from "./table";

/** How often it is asked for again what a run waits for. */
const WAITING_MS = 10_000;
/** So many are drawn; the table has all. */
const MOST_FUNNELS = 6;

/** Why a run that waits has no place yet. Its jobs that differ are explained one by one. */
export function Waiting({ run }: { run: Run }) {
  const { run_name, configuration, profile } = run.run_spec;
  const query = useQuery({
    queryKey: ["why it waits", run.project_name, run.id],
    queryFn: ({ signal }) =>
      post("/api/project/{project_name}/runs/get_plan", { params: { project_name: run.project_name }, body: { run_spec: { run_name, configuration, profile } as never, max_offers: 1, explain: true }, signal }),
    refetchInterval: WAITING_MS,
  });
  const explanations = query.data?.explanations ?? [];
  return (
    <>
      <Failure error={query.error} title="Why it waits could not be read" />
      {query.isPending && <Loading what="why it waits" />}
      {explanations.map((explanation) => (
        <Explained key={explanation.job_name} explanation={explanation} />
      ))}
    </>
  );
}

/** Per fleet and backend: how many there are, how many are left after each check, and how many fit. */
function Funnels({ explanation }: { explanation: JobExplanation }) {
  const all = funnels(explanation);
  if (all.length === 0) return null;
  const cheapest = cheapestOf(all);
  return (
    <div className="funnels">
      {cheapest && (
        <p>
          The cheapest offer of a backend that is as asked for: <strong>{cheapest.price > 0 ? money(cheapest.price) : "free"}</strong>{cheapest.price > 0 && " an hour"}, of {cheapest.name}.
        </p>
      )}
      <ul>
        {all.slice(0, MOST_FUNNELS).map((funnel) => (
          <li key={funnel.key}>
            <OneFunnel funnel={funnel} />
          </li>
        ))}
      </ul>
      {explanation.backends.length > 0 && <p className="hint">Offers are counted whatever fleets allow; each falls out at the first check that it does not pass. What fleets leave out is said below.</p>}
      <details>
        <summary>{all.length > MOST_FUNNELS ? `As a table, with ${all.length - MOST_FUNNELS} more` : "As a table"}</summary>
        <Table label="What is left after each check" columns={columns(all)} rows={all} idOf={(funnel) => funnel.key} />
      </details>
    </div>
  );
}

function OneFunnel({ funnel }: { funnel: Funnel }) {
  const { name, of, total, fit, steps } = funnel;
  return (
    <>
      <h3>{name}</h3>
      <ol className="funnel">
        <Bar length={100} tone="all" text={count(total, of)} />
        {steps.map((step) => (
          <Bar key={step.why} length={barOf(step.left, total)} tone={step.left > 0 ? "left" : "none"} text={of === "instance" ? `${count(step.lost, of)}: ${step.why}` : `${step.lost.toLocaleString("en")} ${step.why}`} more={step.left > 0 ? `${step.left.toLocaleString("en")} left` : "none left"} />
        ))}
        {fit > 0 && <Bar length={barOf(fit, total)} tone="fit" text={`${fit.toLocaleString("en")} ${of === "offer" ? "as asked for" : "can take it"}`} />}
      </ol>
    </>
  );
}

function Bar({ length, tone, text, more }: { length: number; tone: "all" | "left" | "none" | "fit"; text: string; more?: string }) {
  return (
    <li className={tone}>
      <span className="funnel-bar" aria-hidden="true">
        <span style={{ width: `${length}%` }} />
      </span>
      <span>
        {text}
        {more && <span className="muted">, {more}</span>}
      </span>
    </li>
  );
}

/** A column for each check at which something fell out. */
function columns(all: Funnel[]): Column<Funnel>[] {
  const lostAt = (funnel: Funnel, check: string | null) => funnel.steps.filter((step) => step.check === check).reduce((sum, step) => sum + step.lost, 0);
  const used = CHECK_ORDER.filter((check) => all.some((funnel) => lostAt(funnel, check) > 0));
  const hasFleets = all.some((funnel) => lostAt(funnel, null) > 0);
  return [
    { name: "Where", cell: (funnel) => <span className="name">{funnel.name}</span> },
    { name: "There are", cell: (funnel) => funnel.total, isNumber: true },
    ...used.map((check): Column<Funnel> => ({ name: `Not: ${CHECK_NAMES[check]}`, cell: (funnel) => lostAt(funnel, check) || "", isNumber: true })),
    ...(hasFleets ? [{ name: "Cannot take it", cell: (funnel: Funnel) => lostAt(funnel, null) || "", isNumber: true }] : []),
    { name: "Fit", cell: (funnel) => funnel.fit, isNumber: true },
    { name: "Cheapest", cell: (funnel) => price(funnel.cheapest), isNumber: true },
  ];
}

const SHOWN_REFUSED = 8;

/** Why each place was taken or not, and what to change. */
export function Explained({ explanation }: { explanation: JobExplanation }) {
  return (
    <Section title={`Why: ${explanation.fits ? "it fits" : "it does not fit"}`}>
      <Funnels explanation={explanation} />
      {explanation.changes.length > 0 && (
        <>
          <h3>The smallest changes that make it fit</h3>
          <ul className="changes">
            {explanation.changes.map((change, at) => (
              <li key={at}>
                {change.fields.map((field) => (
                  <span key={field.field} className="change">
                    <code>{field.field}</code>: {field.from !== null && <><del>{field.from}</del> → </>}
                    <ins>{field.to}</ins>
                  </span>
                ))}
                <span className="muted"> gives {change.gives}{change.price > 0 && `, ${money(change.price)}/h`}</span>
              </li>
            ))}
          </ul>
        </>
      )}
      <ul className="verdicts">
        {explanation.fleets.map((fleet) => (
          <li key={fleet.name} className={fleet.chosen ? "good" : ""}>
            <strong>Fleet {fleet.name}</strong> {fleet.chosen ? "is chosen" : (fleet.reason ?? "is not chosen")}
            {fleet.no_new_instances && <span className="sub">No new instances: {fleet.no_new_instances}</span>}
          </li>
        ))}
        {explanation.instances.map((instance) => (
          <li key={instance.name} className={instance.available ? "good" : ""}>
            <strong>Instance {instance.name}</strong> {instance.available ? "can take it" : instance.reasons.join("; ")}
          </li>
        ))}
        {explanation.refused_offers.slice(0, SHOWN_REFUSED).map((offer, at) => (
          <li key={at}>
            <strong>
              {offer.backend} {offer.region} {offer.instance}
            </strong>{" "}
            ({price(offer.price)}) {offer.reasons.join("; ")}
          </li>
        ))}
      </ul>
      {explanation.total_refused_offers > SHOWN_REFUSED && <p className="muted">and {count(explanation.total_refused_offers - SHOWN_REFUSED, "more offer")} that do not fit</p>}
    </Section>
  );
}
