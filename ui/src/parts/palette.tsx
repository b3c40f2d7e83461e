/** Go anywhere by typing: pages, projects, runs, fleets. */

import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type KeyboardEvent, useEffect, useId, useMemo, useRef, useState } from "react";
import { post } from "../api/client";
import * as queries from "../api/queries";
import { capitalised } from "../logic/format";
import { nameOf } from "../logic/runs";
import { useOutside } from "./dialog";
import { PLACES } from "./shell";

interface Found {
  name: string;
  kind: string;
  go: () => void;
}

const MOST = 12;

export default function Palette({ onClose, isAdmin }: { onClose: () => void; isAdmin: boolean }) {
  const navigate = useNavigate();
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const list = useId();
  const outside = useOutside(onClose);
  const projects = useQuery(queries.projects());
  const runs = useQuery({ queryKey: ["palette", "runs"], queryFn: ({ signal }) => post("/api/runs/list", { body: { limit: 100, include_jobs: false }, signal }) });
  const fleets = useQuery({ queryKey: ["palette", "fleets"], queryFn: ({ signal }) => post("/api/fleets/list", { body: { only_active: true, limit: 100 }, signal }) });
  useEffect(() => {
    if (!dialog.current?.open) dialog.current?.showModal();
  }, []);

  const all = useMemo(() => {
    const to = (path: string, params?: Record<string, string>) => () => void navigate({ to: path, params: params as never });
    const found: Found[] = PLACES.filter((place) => !place.isForAdmins || isAdmin).map((place) => ({ name: place.name, kind: "page", go: to(place.to) }));
    found.push({ name: "Launch", kind: "page", go: to("/runs/launch") });
    for (const run of runs.data ?? []) {
      found.push({ name: nameOf(run), kind: `run in ${run.project_name}`, go: to("/projects/$p/runs/$runId", { p: run.project_name, runId: run.id }) });
    }
    for (const fleet of fleets.data ?? []) {
      found.push({ name: fleet.name, kind: `fleet in ${fleet.project_name}`, go: to("/projects/$p/fleets/$id", { p: fleet.project_name, id: fleet.id }) });
    }
    for (const project of projects.data ?? []) found.push({ name: project.project_name, kind: "project", go: to("/projects/$p", { p: project.project_name }) });
    return found;
  }, [navigate, isAdmin, runs.data, fleets.data, projects.data]);
  const wanted = text.toLowerCase();
  const shown = all.filter((each) => each.name.toLowerCase().includes(wanted)).slice(0, MOST);
  const missing = [projects.error && "projects", runs.error && "runs", fleets.error && "fleets"].filter(Boolean);
  const chosen = shown[Math.min(at, shown.length - 1)];

  const pick = (found: Found | undefined) => {
    if (!found) return;
    onClose();
    found.go();
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setAt(Math.min(at + 1, shown.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
    else if (event.key === "Enter") pick(chosen);
    else return;
    event.preventDefault();
  };
  return (
    <dialog ref={dialog} className="palette" aria-label="Go to" onCancel={onClose} {...outside}>
      <div className="dialog">
        <input
          role="combobox"
          aria-label="Where to"
          aria-expanded="true"
          aria-controls={list}
          aria-activedescendant={chosen && `${list}-${shown.indexOf(chosen)}`}
          placeholder="Run, fleet, project or page"
          value={text}
          autoFocus
          autoComplete="off"
          onChange={(event) => {
            setText(event.target.value);
            setAt(0);
          }}
          onKeyDown={onKey}
        />
        <ul role="listbox" id={list} aria-label="Places">
          {shown.map((each, index) => (
            <li key={`${each.kind} ${each.name} ${index}`} id={`${list}-${index}`} role="option" aria-selected={each === chosen} onClick={() => pick(each)}>
              {each.name} <span className="muted">{each.kind}</span>
            </li>
          ))}
        </ul>
        {missing.length > 0 && <p role="status">{capitalised(missing.join(" and "))} could not be read, and are missing here.</p>}
        {shown.length === 0 && missing.length === 0 && <p role="status">Nothing has this name among pages, projects, and the newest 100 runs and fleets.</p>}
      </div>
    </dialog>
  );
}
