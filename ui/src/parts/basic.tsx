/** Small parts that all pages are made of. */

import { Link, type LinkProps } from "@tanstack/react-router";
import { type ButtonHTMLAttributes, type ReactNode, type Ref, useEffect, useId, useRef, useState } from "react";
import { ApiError, ServerLost, TryLater } from "../api/client";
import { capitalised } from "../logic/format";
import { toneOf } from "../logic/status";
import { ago, exactInZone } from "../logic/time";

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { ref?: Ref<HTMLButtonElement>; kind?: "primary" | "danger" | "plain"; busy?: boolean };

export function Button({ kind, busy, children, className = "", disabled, ...rest }: ButtonProps) {
  return (
    <button type="button" {...rest} className={`button ${kind ?? ""} ${className}`} disabled={disabled ?? busy} aria-busy={busy || undefined}>
      {children}
    </button>
  );
}

export function Status({ text, base }: { text: string; base?: string }) {
  return (
    <span className={`status ${toneOf(text, base)}`}>
      <span className="dot" aria-hidden="true" />
      {capitalised(text)}
    </span>
  );
}

/** The time, again and again, for what is shown relative to it. */
export function useNow(everyMs = 1000): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now());
    }, everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** How long ago, with the exact time beside it for who points at it. */
export function Time({ at }: { at: string | null | undefined }) {
  const now = useNow(10_000);
  if (!at) return null;
  return (
    <time dateTime={at} title={exactInZone(at)}>
      {ago(at, now)}
    </time>
  );
}

export function Alert({ kind = "info", title, children }: { kind?: "info" | "bad" | "warning" | "good"; title?: string; children?: ReactNode }) {
  return (
    <div className={`alert ${kind}`} role={kind === "bad" ? "alert" : undefined}>
      {title && <strong>{title}</strong>}
      {children && <div>{children}</div>}
    </div>
  );
}

/** What a plan says will not be as asked for, and what is missing of its offers. */
export function Notices({ notices = [] }: { notices?: string[] | undefined }) {
  if (notices.length === 0) return null;
  return (
    <Alert kind="warning" title="Note">
      {notices.map((notice) => (
        <p key={notice}>
          <Coded text={notice} />
        </p>
      ))}
    </Alert>
  );
}

/** A text, with what stands in backticks as code. */
export function Coded({ text }: { text: string }) {
  return text.split("`").map((part, at) => (at % 2 === 1 ? <code key={at}>{part}</code> : part));
}

/** What the server or the connection says of a failed call. */
export function Failure({ error, title }: { error: unknown; title?: string }) {
  if (!error) return null;
  if (error instanceof ServerLost) return <Alert kind="warning" title="The server does not answer">{error.message} What is shown is read again once it does.</Alert>;
  if (error instanceof TryLater) return <Alert kind="warning" title="The server asks to wait">{error.message}</Alert>;
  if (error instanceof ApiError && error.status === 403) {
    return (
      <Alert kind="bad" title={title ?? "You may not see or do this"}>
        {error.message}. Who administers the project or the server can change that.
      </Alert>
    );
  }
  const problems = error instanceof ApiError ? error.problems : [{ text: error instanceof Error ? error.message : String(error), place: [] }];
  return (
    <Alert kind="bad" title={title ?? "That did not work"}>
      <ul className="problems">
        {problems.map((problem, at) => (
          <li key={at}>
            {problem.place.length > 0 && <code>{problem.place.join(".")}</code>} {problem.text}
          </li>
        ))}
      </ul>
    </Alert>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <p className="loading" role="status">
      Loading {what}…
    </p>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <p className="empty-title">{title}</p>
      {children}
    </div>
  );
}

export function Head({ title, children, above }: { title: ReactNode; children?: ReactNode; above?: ReactNode }) {
  const heading = useRef<HTMLHeadingElement>(null);
  const text = typeof title === "string" ? title : null;
  useEffect(() => {
    document.title = text === null ? "dstack" : `${text} · dstack`;
  }, [text]);
  return (
    <header className="head">
      <div>
        {above && (
          <nav className="crumbs" aria-label="Where this is">
            {above}
          </nav>
        )}
        <h1 ref={heading} tabIndex={-1}>
          {title}
        </h1>
      </div>
      {children && <div className="actions">{children}</div>}
    </header>
  );
}

export function Section({ title, children, actions, id }: { title: string; children: ReactNode; actions?: ReactNode; id?: string }) {
  const own = useId();
  const heading = id ?? own;
  return (
    <section className="card" aria-labelledby={heading}>
      <div className="card-head">
        <h2 id={heading}>{title}</h2>
        {actions && <div className="actions">{actions}</div>}
      </div>
      {children}
    </section>
  );
}

/** Names and values. Values that are not there are left out. */
export function Facts({ facts }: { facts: [string, ReactNode][] }) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return (
    <dl className="facts">
      {known.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Field({ label, hint, error, children }: { label: string; hint?: ReactNode; error?: string | null; children: (props: { id: string; "aria-describedby"?: string; "aria-invalid"?: true }) => ReactNode }) {
  const id = useId();
  const described = error || hint ? { "aria-describedby": `${id}-more` } : {};
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children({ id, ...described, ...(error ? { "aria-invalid": true as const } : {}) })}
      {(error || hint) && (
        <p id={`${id}-more`} className={error ? "field-error" : "hint"}>
          {error || hint}
        </p>
      )}
    </div>
  );
}

export function Toggle({ label, checked, onChange }: { label: string; checked: boolean; onChange: (checked: boolean) => void }) {
  return (
    <label className="toggle">
      <input type="checkbox" role="switch" checked={checked} onChange={(event) => onChange(event.target.checked)} />
      <span>{label}</span>
    </label>
  );
}

/** Views of one thing, each with an address of its own. */
export function Tabs({ tabs, label }: { tabs: { name: string; link: LinkProps }[]; label: string }) {
  return (
    <nav className="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <Link key={tab.name} {...tab.link} activeOptions={{ exact: true, includeSearch: false }}>
          {tab.name}
        </Link>
      ))}
    </nav>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [said, setSaid] = useState<string>();
  const copy = async () => {
    setSaid((await copyText(text)) ? "Copied" : "Not copied");
    setTimeout(() => setSaid(undefined), 1500);
  };
  return (
    <Button kind="plain" className="copy" onClick={() => void copy()}>
      <span aria-live="polite">{said ?? label}</span>
    </Button>
  );
}

/** Whether it was copied. Pages that come over plain HTTP have no clipboard of their own. */
async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "off-screen";
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}

export function Code({ text, label }: { text: string; label: string }) {
  return (
    <div className="code">
      <pre tabIndex={0} aria-label={label}>
        <code>{text}</code>
      </pre>
      <Copy text={text} />
    </div>
  );
}

/** A secret: hidden until it is asked for. */
export function Hidden({ text, label }: { text: string; label: string }) {
  const [isShown, setShown] = useState(false);
  return (
    <span className="hidden-value">
      <code>{isShown ? text : "•".repeat(12)}</code>
      <Button kind="plain" aria-pressed={isShown} onClick={() => setShown(!isShown)}>
        {isShown ? "Hide" : "Show"} {label}
      </Button>
      <Copy text={text} label={`Copy ${label}`} />
    </span>
  );
}
