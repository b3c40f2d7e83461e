/** Output of a job: the newest lines first, older ones when one scrolls up, new ones as they come. */

import { useDeferredValue, useEffect, useMemo, useReducer, useState } from "react";
import type { Chunk } from "../logic/chunks";
import { tryingAgain, type Trouble } from "../logic/follow";
import { lastGap } from "../logic/output";
import { type Place, Search } from "../logic/search";
import { usePreference } from "../preferences";
import { Button, Empty, Failure, Loading, Toggle } from "./basic";
import { type Followed, type Output, useOutput } from "./follow-output";
import { Lines } from "./lines";

export function Logs(followed: Followed) {
  const { isLive } = followed;
  const [diagnose, setDiagnose] = useState(false);
  const [times, setTimes] = usePreference("logs.times", "false");
  const [wraps, setWraps] = usePreference("logs.wrap", "false");
  const [wanted, setWanted] = useState("");
  const output = useOutput(followed, diagnose);
  const { chunks } = output.lines;
  const found = useSearch(useDeferredValue(wanted), chunks);
  return (
    <div className="logs">
      <div className="filters" role="group" aria-label="Output">
        <input
          type="search"
          aria-label="Search the lines that are loaded"
          placeholder="Search"
          value={wanted}
          onChange={(event) => setWanted(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") found.go(!event.shiftKey);
          }}
        />
        {found.text !== null && <span role="status">{found.text}</span>}
        {found.total > 1 && (
          <>
            <Button onClick={() => found.go(true)} aria-label="Older match" title="Enter">↑</Button>
            <Button onClick={() => found.go(false)} aria-label="Newer match" title="Shift+Enter">↓</Button>
          </>
        )}
        {found.text !== null && <SearchOlder output={output} />}
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
      ) : output.lines.count === 0 && !lastGap(output) ? (
        <Empty title={isLive ? "Nothing was printed yet" : "Nothing was printed"} />
      ) : (
        <>
          {output.isCut && <Cut output={output} />}
          {output.missingError !== null && (
            <>
              <Failure error={output.missingError} title="Older output could not be read" />
              <Button onClick={output.readLastGap}>Read older output</Button>
            </>
          )}
          <Lines key={String(diagnose)} output={output} current={found.current} sought={found.sought} withTimes={times === "true"} wraps={wraps === "true"} />
        </>
      )}
    </div>
  );
}

/** Says how much of it is kept. */
function Cut({ output }: { output: Output }) {
  const { count, characters } = output.lines;
  return (
    <p className="muted" role="status">
      The newest {count.toLocaleString("en")} lines, of {Math.ceil(characters / 1e6).toLocaleString("en")} million characters, are kept here; <code>dstack logs</code> has all.
    </p>
  );
}

/** Has what is searched read on until its beginning. */
function SearchOlder({ output }: { output: Output }) {
  const { readsAll, setReadsAll } = output;
  // Who searches no more needs no more of it.
  useEffect(() => () => setReadsAll(false), [setReadsAll]);
  if (readsAll) {
    return (
      <>
        <span className="muted">{output.lines.count.toLocaleString("en")} lines so far</span>
        <Button onClick={() => setReadsAll(false)}>Stop reading older output</Button>
      </>
    );
  }
  return lastGap(output) ? <Button onClick={() => setReadsAll(true)}>Search older output too</Button> : null;
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

/** So many milliseconds it is searched at a time: between them the page is drawn, and can be used. */
const SLICE_MS = 8;
/** So often it is said how much was found meanwhile. */
const SAY_MS = 100;

interface Found {
  sought: string;
  total: number;
  /** How much was found, in words; unset where nothing is sought. */
  text: string | null;
  /** The line that one is at. */
  current: Place | null;
  go: (isOlder: boolean) => void;
}

function useSearch(sought: string, chunks: readonly Chunk[]): Found {
  const search = useMemo(() => (sought === "" ? null : new Search(sought)), [sought]);
  const [at, setAt] = useState<{ search: Search | null; place: Place | null }>({ search: null, place: null });
  const [, say] = useReducer((times: number) => times + 1, 0);
  useEffect(() => {
    if (search === null) return;
    let timer: ReturnType<typeof setTimeout>;
    let saidAt = performance.now();
    const goOn = () => {
      const end = performance.now() + SLICE_MS;
      const isThrough = search.goOn(chunks, () => performance.now() < end);
      if (isThrough || performance.now() - saidAt > SAY_MS) {
        saidAt = performance.now();
        const newest = search.newest(chunks);
        // The newest is gone to at first, and not whenever another one comes.
        if (newest) setAt((before) => (before.search === search ? before : { search, place: newest }));
        say();
      }
      if (!isThrough) timer = setTimeout(goOn);
    };
    goOn();
    return () => clearTimeout(timer);
  }, [search, chunks]);
  if (search === null) return { sought, total: 0, text: null, current: null, go: () => undefined };
  const current = at.search === search ? at.place : null;
  const { total, position } = search.tally(chunks, current);
  const isThrough = search.isThrough(chunks);
  const text = total === 0 ? (isThrough ? "Not found" : "Searching…") : `${(position ?? total).toLocaleString("en")} of ${total.toLocaleString("en")}${isThrough ? "" : "…"}`;
  return { sought, total, text, current, go: (isOlder) => setAt({ search, place: search.beside(chunks, current, isOlder) }) };
}
