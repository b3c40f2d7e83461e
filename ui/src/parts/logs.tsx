/** Output of a job: the newest lines first, older ones when one scrolls up, new ones as they come. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useCallback, useDeferredValue, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { post } from "../api/client";
import { LIVE_MS } from "../api/queries";
import type { LogEvent } from "../api/types";
import { type Look, parse, plain } from "../logic/ansi";
import { append, type Line, matches, prepend, unknown } from "../logic/lines";
import { clock } from "../logic/time";
import { usePreference } from "../preferences";
import { Button, Empty, Failure, Loading, Toggle } from "./basic";

const PAGE = 1000;
const LINE_HEIGHT = 20;
/** So near to the top, older lines are fetched; so near to the bottom, the view follows. */
const NEAR = 300;

interface Output {
  lines: Line[];
  older: string | null;
  isLoading: boolean;
  error: unknown;
  externalUrl: string | null;
  loadOlder: () => void;
}

/** Reads the output of a submission of a job, and goes on while it may print more. */
function useOutput(project: string, runName: string, submission: string, isLive: boolean, diagnose: boolean): Output {
  const [lines, setLines] = useState<Line[]>([]);
  const [older, setOlder] = useState<string | null>(null);
  const [isLoading, setLoading] = useState(true);
  const [error, setError] = useState<unknown>(null);
  const [externalUrl, setExternalUrl] = useState<string | null>(null);
  const recent = useRef<LogEvent[]>([]);
  const isFetchingOlder = useRef(false);
  const poll = useCallback(
    (more: object, signal: AbortSignal) =>
      post("/api/project/{project_name}/logs/poll", {
        params: { project_name: project },
        body: { run_name: runName, job_submission_id: submission, limit: PAGE, diagnose, ...more },
        signal,
      }),
    [project, runName, submission, diagnose],
  );

  useEffect(() => {
    const abort = new AbortController();
    recent.current = [];
    setLines([]);
    setLoading(true);
    const start = async () => {
      try {
        const page = await poll({ descending: true }, abort.signal);
        const events = page.logs.toReversed();
        const first: Line[] = [];
        append(first, events);
        recent.current = events;
        setLines(first);
        setOlder(page.next_token);
        setExternalUrl(page.external_url);
        setError(null);
      } catch (failed) {
        if (!abort.signal.aborted) setError(failed);
      }
      if (!abort.signal.aborted) setLoading(false);
    };
    void start();
    return () => abort.abort();
  }, [poll]);

  useEffect(() => {
    if (isLoading) return;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    const follow = async () => {
      if (!document.hidden) {
        try {
          await readOn();
          setError(null);
        } catch (failed) {
          if (!abort.signal.aborted) setError(failed);
        }
      }
      if (isLive && !abort.signal.aborted) timer = setTimeout(() => void follow(), LIVE_MS / 2);
    };
    const readOn = async () => {
      let isFull = true;
      let token: string | null = null;
      const last = recent.current.at(-1);
      // What was printed in the last millisecond is asked for again: more may have come since.
      const since = last === undefined ? null : new Date(Date.parse(last.timestamp) - 1).toISOString();
      while (isFull && !abort.signal.aborted) {
        const page: Awaited<ReturnType<typeof poll>> = await poll({ start_time: since, next_token: token }, abort.signal);
        const fresh = unknown(page.logs, recent.current);
        if (fresh.length > 0) {
          recent.current = [...recent.current, ...fresh].slice(-2 * PAGE);
          setLines((before) => {
            const after = before.slice();
            const open = after.at(-1);
            if (open) after[after.length - 1] = { ...open };
            append(after, fresh);
            return after;
          });
        }
        token = page.next_token;
        isFull = page.logs.length >= PAGE && token !== null;
      }
    };
    timer = setTimeout(() => void follow(), isLive ? LIVE_MS / 2 : 0);
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [poll, isLive, isLoading]);

  const loadOlder = useCallback(() => {
    if (older === null || isFetchingOlder.current) return;
    isFetchingOlder.current = true;
    poll({ descending: true, next_token: older }, new AbortController().signal)
      .then((page) => {
        setLines((known) => prepend(known, page.logs.toReversed()));
        setOlder(page.next_token);
      })
      .catch(setError)
      .finally(() => {
        isFetchingOlder.current = false;
      });
  }, [older, poll]);
  return { lines, older, isLoading, error, externalUrl, loadOlder };
}

interface Props {
  project: string;
  runName: string;
  submission: string;
  isLive: boolean;
}

export function Logs({ project, runName, submission, isLive }: Props) {
  const [diagnose, setDiagnose] = useState(false);
  const [times, setTimes] = usePreference("logs.times", "false");
  const [wraps, setWraps] = usePreference("logs.wrap", "false");
  const [wanted, setWanted] = useState("");
  const [at, setAt] = useState(0);
  const output = useOutput(project, runName, submission, isLive, diagnose);
  const sought = useDeferredValue(wanted);
  const found = useMemo(() => (sought === "" ? [] : matches(output.lines.map((line) => plain(line.text)), sought)), [output.lines, sought]);
  const current = found.length === 0 ? undefined : found[((at % found.length) + found.length) % found.length];
  return (
    <div className="logs">
      <div className="filters" role="group" aria-label="Output">
        <input
          type="search"
          aria-label="Search the lines that are loaded"
          placeholder="Search"
          value={wanted}
          onChange={(event) => {
            setWanted(event.target.value);
            setAt(0);
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter") setAt(at + (event.shiftKey ? -1 : 1));
          }}
        />
        {sought !== "" && (
          <span role="status">
            {found.length === 0 ? "Not found" : `${(((at % found.length) + found.length) % found.length) + 1} of ${found.length}`}
          </span>
        )}
        {found.length > 1 && (
          <>
            <Button onClick={() => setAt(at - 1)} aria-label="Previous match">↑</Button>
            <Button onClick={() => setAt(at + 1)} aria-label="Next match">↓</Button>
          </>
        )}
        <Toggle label="Times" checked={times === "true"} onChange={(on) => setTimes(String(on))} />
        <Toggle label="Wrap" checked={wraps === "true"} onChange={(on) => setWraps(String(on))} />
        <Toggle label="Of the agent" checked={diagnose} onChange={setDiagnose} />
        {output.externalUrl?.startsWith("https://") && (
          <a href={output.externalUrl} rel="noreferrer noopener" target="_blank">
            Where it is stored
          </a>
        )}
      </div>
      <Failure error={output.error} />
      {output.isLoading ? (
        <Loading what="output" />
      ) : output.lines.length === 0 ? (
        <Empty title={isLive ? "Nothing was printed yet" : "Nothing was printed"} />
      ) : (
        <Lines output={output} current={current} sought={sought} withTimes={times === "true"} wraps={wraps === "true"} />
      )}
    </div>
  );
}

interface LinesProps {
  output: Output;
  current: number | undefined;
  sought: string;
  withTimes: boolean;
  wraps: boolean;
}

function Lines({ output, current, sought, withTimes, wraps }: LinesProps) {
  const { lines, older, loadOlder } = output;
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const first = useRef(lines[0]);
  const [isAway, setAway] = useState(false);
  const windowed = useVirtualizer({ count: lines.length, getScrollElement: () => box.current, estimateSize: () => LINE_HEIGHT, overscan: 20 });

  useLayoutEffect(() => {
    const known = first.current;
    first.current = lines[0];
    if (follows.current) {
      windowed.scrollToIndex(lines.length - 1, { align: "end" });
    } else if (known && lines[0] !== known) {
      // Older lines came before: what was seen stays where it was.
      const moved = lines.indexOf(known);
      if (moved > 0 && box.current) box.current.scrollTop += moved * LINE_HEIGHT;
    }
  }, [lines, windowed]);

  useEffect(() => {
    if (current === undefined) return;
    follows.current = false;
    windowed.scrollToIndex(current, { align: "center" });
  }, [current, windowed]);

  const onScroll = () => {
    const view = box.current;
    if (!view) return;
    const below = view.scrollHeight - view.scrollTop - view.clientHeight;
    follows.current = below < LINE_HEIGHT * 2;
    setAway(!follows.current);
    if (view.scrollTop < NEAR && older !== null && !follows.current) loadOlder();
  };
  return (
    <div className="log-frame">
      <div ref={box} className={`log ${wraps ? "wraps" : ""}`} tabIndex={0} role="log" aria-live="off" aria-label="Output" onScroll={onScroll}>
        <div className="log-space" style={{ height: windowed.getTotalSize() }}>
          {windowed.getVirtualItems().map((item) => {
            const line = lines[item.index];
            if (!line) return null;
            return (
              <div key={item.key} data-index={item.index} ref={windowed.measureElement} className={`line ${line.isError ? "stderr" : ""} ${item.index === current ? "current" : ""}`} style={{ transform: `translateY(${item.start}px)` }}>
                {withTimes && <time dateTime={line.time}>{clock(line.time)}</time>}
                <LineText text={line.text} sought={sought} />
              </div>
            );
          })}
        </div>
      </div>
      {isAway && (
        <Button
          className="to-end"
          onClick={() => {
            follows.current = true;
            setAway(false);
            windowed.scrollToIndex(lines.length - 1, { align: "end" });
          }}
        >
          To the end
        </Button>
      )}
    </div>
  );
}

/** Longer lines are cut: no screen shows them. */
const LONGEST = 20_000;

const LineText = memo(function LineText({ text, sought }: { text: string; sought: string }) {
  const pieces = parse(text.length > LONGEST ? `${text.slice(0, LONGEST)} … (${text.length - LONGEST} more)` : text);
  return (
    <span className="text">
      {pieces.length === 0 ? "\u00a0" : pieces.map((piece, at) => (
        <span key={at} className={lookClasses(piece.look)} style={lookColours(piece.look)}>
          {marked(piece.text, sought)}
        </span>
      ))}
    </span>
  );
});

function marked(text: string, sought: string) {
  const needle = sought.toLowerCase();
  if (needle === "" || !text.toLowerCase().includes(needle)) return text;
  const parts = [];
  let from = 0;
  for (let at = text.toLowerCase().indexOf(needle); at >= 0; at = text.toLowerCase().indexOf(needle, from)) {
    parts.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + needle.length)}</mark>);
    from = at + needle.length;
  }
  return [...parts, text.slice(from)];
}

function lookClasses(look: Look): string {
  const names: string[] = [];
  if (look.bold) names.push("bold");
  if (look.faint) names.push("faint");
  if (look.italic) names.push("italic");
  if (look.underline) names.push("underlined");
  if (look.inverse) names.push("inverse");
  if (typeof look.colour === "number") names.push(`fg-${look.colour}`);
  if (typeof look.background === "number") names.push(`bg-${look.background}`);
  return names.join(" ");
}

function lookColours(look: Look): { color?: string; backgroundColor?: string } {
  return {
    ...(typeof look.colour === "string" && { color: look.colour }),
    ...(typeof look.background === "string" && { backgroundColor: look.background }),
  };
}
