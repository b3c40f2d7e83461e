/** Lines of output, of which those are drawn that are seen. */

import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { type Look, parse } from "../logic/ansi";
import type { Chunk } from "../logic/chunks";
import { type Line, split, tellsOfLoss } from "../logic/lines";
import { around, down, partBefore, up } from "../logic/part";
import type { Place } from "../logic/search";
import { exact, exactInZone } from "../logic/time";
import { Button } from "./basic";
import type { Output } from "./follow-output";

const LINE_HEIGHT = 20;
/** So near to its beginning or end, what is further up or down is laid out or read. */
const NEAR = 300;
/** So near to the end, the view follows. */
const AT_END = LINE_HEIGHT * 2;
/** For so many frames a line that is gone to is kept in the middle, while what is above it gets its height. */
const CENTRED_FRAMES = 4;

interface Props {
  output: Output;
  /** The line to go to. */
  current: Place | null;
  sought: string;
  withTimes: boolean;
  wraps: boolean;
}

export function Lines({ output, current, sought, withTimes, wraps }: Props) {
  const { lines, reading, missingError, readMissing } = output;
  const { chunks } = lines;
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const top = useRef(0);
  const target = useRef<Place>(null);
  const [isAway, setAway] = useState(false);
  /** The last chunk that is laid out; unset for the end. */
  const [lastId, setLastId] = useState<number | null>(null);
  const end = lastId === null ? null : chunks.findIndex((chunk) => chunk.id === lastId) + 1;
  const part = partBefore(chunks.length, end);
  const shown = useMemo(() => chunks.slice(part.from, part.to), [chunks, part.from, part.to]);
  const windowed = useVirtualizer({
    count: shown.length,
    getScrollElement: () => box.current,
    estimateSize: (at) => (shown[at]?.lines.length ?? 0) * LINE_HEIGHT,
    getItemKey: useCallback((at: number) => shown[at]?.id ?? at, [shown]),
    overscan: 1,
    // What is seen stays where it is when something comes before it, or is left out there.
    anchorTo: "end",
  });
  const endAt = (place: number | null) => setLastId(place === null ? null : (chunks[place - 1]?.id ?? null));

  /** Goes on with what is further up or down. */
  const goOn = () => {
    const view = box.current;
    if (!view) return;
    const [first] = chunks;
    // Who follows is at the end, and wants what is further up only where that is seen.
    if (follows.current && view.scrollHeight > view.clientHeight + NEAR) return;
    if (view.scrollTop < NEAR) {
      if (part.from > 0) endAt(up(part));
      // What could not be read is read again when one asks for it.
      else if (first?.gap && missingError === null) readMissing(first.id);
    } else if (end !== null && below(view) < NEAR) endAt(down(part, chunks.length));
  };
  const seek = () => {
    const place = target.current;
    const at = shown.findIndex((chunk) => chunk.id === place?.chunk);
    const [view, item, chunk] = [box.current, windowed.measurementsCache[at], shown[at]];
    if (!place || !view || !item || !chunk) return;
    target.current = null;
    windowed.scrollToOffset(item.start + (item.size * place.line) / chunk.lines.length - view.clientHeight / 2);
    centre(view, CENTRED_FRAMES);
  };

  // Lines have other heights then.
  useLayoutEffect(() => windowed.measure(), [windowed, wraps, withTimes]);
  useLayoutEffect(() => {
    if (target.current) return seek();
    if (follows.current) windowed.scrollToEnd();
    goOn();
    // What these do follows from what is shown.
  }, [shown, windowed]);
  useEffect(() => {
    const at = chunks.findIndex((chunk) => chunk.id === current?.chunk);
    if (current === null || at < 0) return;
    follows.current = false;
    setAway(true);
    target.current = current;
    endAt(around(part, at, chunks.length));
    seek();
    // It is gone to once, wherever it is then.
  }, [current]);

  const onScroll = () => {
    const view = box.current;
    if (!view) return;
    // What grows at its end does not move the view; who scrolls up does.
    const isUp = view.scrollTop < top.current;
    top.current = view.scrollTop;
    if (end === null && below(view) < AT_END) follows.current = true;
    else if (isUp) follows.current = false;
    setAway(!follows.current);
    goOn();
  };
  const toEnd = () => {
    follows.current = true;
    setAway(false);
    setLastId(null);
    windowed.scrollToEnd();
  };
  return (
    <div className="log-frame">
      <div
        ref={box}
        className={`log ${wraps ? "wraps" : ""}`}
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label="Output"
        onScroll={onScroll}
        onKeyDown={(event) => {
          if (event.key === "End") toEnd();
        }}
      >
        <div className="log-space" style={{ height: windowed.getTotalSize() }}>
          {windowed.getVirtualItems().map((item) => {
            const chunk = shown[item.index];
            if (!chunk) return null;
            return (
              <div key={item.key} data-index={item.index} ref={windowed.measureElement} className="chunk" style={{ transform: `translateY(${item.start}px)` }}>
                {chunk.gap && chunk !== chunks[0] && <Missing isReading={reading === chunk.id} read={() => readMissing(chunk.id)} />}
                <ChunkLines chunk={chunk} current={current?.chunk === chunk.id ? current.line : null} sought={sought} withTimes={withTimes} />
              </div>
            );
          })}
        </div>
      </div>
      {isAway && (
        <Button className="to-end" onClick={toEnd}>
          To the end
        </Button>
      )}
    </div>
  );
}

function below(view: HTMLElement): number {
  return view.scrollHeight - view.scrollTop - view.clientHeight;
}

/** Keeps the line that was gone to in the middle. */
function centre(view: HTMLElement, frames: number): void {
  if (frames === 0) return;
  requestAnimationFrame(() => {
    const line = view.querySelector(".line.current")?.getBoundingClientRect();
    const own = view.getBoundingClientRect();
    if (line) view.scrollTop += line.top + line.height / 2 - (own.top + own.height / 2);
    centre(view, frames - 1);
  });
}

/** In the place of output that is not read. */
function Missing({ isReading, read }: { isReading: boolean; read: () => void }) {
  return (
    <p className="log-gap">
      More was printed here than this page reads on at once. <Button busy={isReading} onClick={read}>Read what is missing</Button>
    </p>
  );
}

interface ChunkProps {
  chunk: Chunk;
  /** Which of its lines is gone to. */
  current: number | null;
  sought: string;
  withTimes: boolean;
}

const ChunkLines = memo(function ChunkLines({ chunk, current, sought, withTimes }: ChunkProps) {
  return chunk.lines.map((line, at) => (
    <div key={at} className={`line ${line.isError ? "stderr" : ""} ${tellsOfLoss(line.text) ? "loss" : ""} ${at === current ? "current" : ""}`}>
      {withTimes && <LineTime line={line} />}
      <LineText text={line.isCut ? `${line.text}…` : line.text} sought={sought} />
    </div>
  ));
});

function LineTime({ line }: { line: Line }) {
  return (
    <time dateTime={line.time} title={exactInZone(line.time)}>
      {exact(line.time)}
    </time>
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
