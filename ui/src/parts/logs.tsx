/** Output of a job: the newest lines first, older ones when one scrolls up, new ones as they come. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useCallback, useDeferredValue, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { post } from "../api/client";
import { pace } from "../api/pace";
import { LIVE_MS } from "../api/queries";
import { pauseAfter } from "../api/retry";
import type { LogEvent } from "../api/types";
import { followOutput } from "../live";
import { type Look, parse, plain } from "../logic/ansi";
import { follow, type Following, type Trouble, tryingAgain } from "../logic/follow";
import { matches, split } from "../logic/lines";
import { type Asked, begun, type Kept, newer, NOTHING, withNewer, withOlder } from "../logic/output";
import { exact, exactInZone } from "../logic/time";
import { usePreference } from "../preferences";
import { Button, Empty, Failure, Loading, Toggle } from "./basic";

const PAGE = 1000;
const LINE_HEIGHT = 20;
/** So near to the top, older lines are fetched; so near to the bottom, the view follows. */
const NEAR = 300;

interface Output extends Kept {
  isLoading: boolean;
  /** Whether more came at once than is read on: then it began again at the end. */
  hasJumped: boolean;
  /** Why it is not read on now. */
  trouble: Trouble | null;
  /** Why older lines could not be read. */
  olderError: unknown;
  externalUrl: string | null;
  loadOlder: () => void;
}

const FOLLOW_MS = LIVE_MS / 2;
/** How often it is read all the same while the server tells of output. */
const TOLD_MS = 15_000;
/** Some stores show only seconds later what they took: for so long after it was told, output is read again and again. */
const SETTLING_MS = 10_000;
/** So many of the last events are kept, to know those that are said again. */
const RECENT = 2000;

/** Reads the output of a submission of a job, and goes on while it may print more. */
function useOutput({ project, run, runName, submission, isLive }: Props, diagnose: boolean): Output {
  const [kept, setKept] = useState<Kept>(NOTHING);
  const [isLoading, setLoading] = useState(true);
  const [hasJumped, setJumped] = useState(false);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [olderError, setOlderError] = useState<unknown>(null);
  const [externalUrl, setExternalUrl] = useState<string | null>(null);
  const live = useRef(isLive);
  live.current = isLive;
  const following = useRef<Following>(null);
  const toldAt = useRef(-Infinity);
  const fetchingOlder = useRef<AbortController>(null);
  const poll = useCallback(
    (asked: Asked, signal: AbortSignal) =>
      post("/api/project/{project_name}/logs/poll", {
        params: { project_name: project },
        body: { run_name: runName, job_submission_id: submission, limit: PAGE, diagnose, ...asked },
        signal,
      }),
    [project, runName, submission, diagnose],
  );

  useEffect(() => {
    /** The last events, oldest first; unset before the first are read. */
    let recent: LogEvent[] | undefined;
    /** Older lines that are under way belong before other lines than those that come now. */
    const forgetOlder = () => {
      fetchingOlder.current?.abort();
      fetchingOlder.current = null;
      setOlderError(null);
    };
    const begin = async (signal: AbortSignal) => {
      const page = await poll({ descending: true }, signal);
      if (signal.aborted) return;
      forgetOlder();
      recent = page.logs.toReversed();
      setKept(begun(page));
      setExternalUrl(page.external_url);
      setLoading(false);
    };
    const readOn = async (known: LogEvent[], signal: AbortSignal) => {
      const fresh = await newer((asked) => poll(asked, signal), known);
      if (signal.aborted) return;
      if (fresh === null) {
        await begin(signal);
        setJumped(true);
      } else if (fresh.length > 0) {
        recent = [...known, ...fresh].slice(-RECENT);
        setKept((before) => withNewer(before, fresh));
      }
    };
    setKept(NOTHING);
    setJumped(false);
    setTrouble(null);
    setLoading(true);
    const own = follow({
      read: (signal) => (recent === undefined ? begin(signal) : readOn(recent, signal)),
      isLive: () => live.current,
      everyMs: () => (performance.now() - toldAt.current < SETTLING_MS ? FOLLOW_MS : pace(FOLLOW_MS, TOLD_MS)),
      pauseAfter: (failures, error) => pauseAfter(failures, error, LIVE_MS),
      isHidden: () => document.hidden,
      tell: setTrouble,
    });
    following.current = own;
    return () => {
      own.stop();
      forgetOlder();
    };
  }, [poll]);

  useEffect(() => {
    if (!isLive) return;
    const leave = followOutput(run, (isMore) => {
      if (isMore) toldAt.current = performance.now();
      following.current?.now();
    });
    return () => {
      leave();
      // What it printed last is read at once where it has ended.
      following.current?.now();
    };
  }, [run, isLive]);

  const { older } = kept;
  const loadOlder = useCallback(() => {
    if (older === null || fetchingOlder.current) return;
    const own = new AbortController();
    fetchingOlder.current = own;
    setOlderError(null);
    poll({ descending: true, next_token: older }, own.signal)
      .then((page) => {
        if (!own.signal.aborted) setKept((before) => withOlder(before, page));
      })
      .catch((failed: unknown) => {
        if (!own.signal.aborted) setOlderError(failed);
      })
      .finally(() => {
        if (fetchingOlder.current === own) fetchingOlder.current = null;
      });
  }, [older, poll]);
  return { ...kept, isLoading, hasJumped, trouble, olderError, externalUrl, loadOlder };
}

interface Props {
  project: string;
  /** Its id. */
  run: string;
  runName: string;
  submission: string;
  isLive: boolean;
}

export function Logs(props: Props) {
  const { isLive } = props;
  const [diagnose, setDiagnose] = useState(false);
  const [times, setTimes] = usePreference("logs.times", "false");
  const [wraps, setWraps] = usePreference("logs.wrap", "false");
  const [wanted, setWanted] = useState("");
  const [at, setAt] = useState(0);
  const output = useOutput(props, diagnose);
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
      <Troubled trouble={output.trouble} />
      {output.isLoading ? (
        output.trouble?.againMs !== null && <Loading what="output" />
      ) : output.lines.length === 0 ? (
        <Empty title={isLive ? "Nothing was printed yet" : "Nothing was printed"} />
      ) : (
        <>
          {output.isCut && <p className="muted" role="status">The newest {output.lines.length.toLocaleString("en")} lines are kept here; <code>dstack logs</code> has all.</p>}
          {output.olderError !== null && (
            <>
              <Failure error={output.olderError} title="Older output could not be read" />
              <Button onClick={output.loadOlder}>Read older output</Button>
            </>
          )}
          {output.hasJumped && <p className="muted" role="status">More was printed at once than this page reads on: it began again at the end. What came before is fetched as you scroll up.</p>}
          <Lines output={output} current={current} sought={sought} withTimes={times === "true"} wraps={wraps === "true"} />
        </>
      )}
    </div>
  );
}

/** Why the output does not go on, and whether it is tried again. */
function Troubled({ trouble }: { trouble: Trouble | null }) {
  if (trouble === null) return null;
  const again = tryingAgain(trouble);
  return (
    <>
      <Failure error={trouble.error} title="The output could not be read" />
      {again !== null && (
        <p className="muted" role="status">
          {again}
        </p>
      )}
    </>
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
  const shown = useRef(lines);
  const [isAway, setAway] = useState(false);
  const windowed = useVirtualizer({ count: lines.length, getScrollElement: () => box.current, estimateSize: () => LINE_HEIGHT, overscan: 20 });

  useLayoutEffect(() => {
    const before = shown.current;
    shown.current = lines;
    if (follows.current) {
      windowed.scrollToIndex(lines.length - 1, { align: "end" });
    } else if (before[0] && lines[0] && before[0] !== lines[0]) {
      // Older lines came before, or were left out: what was seen stays where it was.
      const moved = lines.indexOf(before[0]);
      const cut = before.indexOf(lines[0]);
      const by = moved > 0 ? moved : -Math.max(0, cut);
      if (box.current) box.current.scrollTop += by * LINE_HEIGHT;
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
                {withTimes && <time dateTime={line.time} title={exactInZone(line.time)}>{exact(line.time)}</time>}
                <LineText text={line.isCut ? `${line.text}…` : line.text} sought={sought} />
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

const LineText = memo(function LineText({ text, sought }: { text: string; sought: string }) {
  const pieces = parse(text);
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
  return split(text, sought).map((piece, at) => (at % 2 === 1 ? <mark key={at}>{piece}</mark> : piece));
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
