/** Lines of output from pieces of it. */

import type { LogEvent } from "../api/types";

export interface Line {
  text: string;
  time: string;
  isError: boolean;
  /** Whether it is longer than what is kept of it. */
  isCut: boolean;
  /** Whether more of this line may follow. */
  isOpen: boolean;
}

const UTF8 = new TextDecoder();

/** What a program printed, as text. */
export function decoded(message: string): string {
  const binary = atob(message);
  const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
  return UTF8.decode(bytes);
}

/** So many characters of a line are kept: no screen shows more, and a program may print without ever ending a line. */
export const LONGEST = 20_000;

/** Puts events after lines: the last line goes on when it was not ended. */
export function append(lines: Line[], events: LogEvent[]): void {
  for (const event of events) {
    const isError = event.log_source === "stderr";
    const parts = decoded(event.message).split("\n");
    for (const [at, part] of parts.entries()) {
      const isLast = at === parts.length - 1;
      if (isLast && part === "") break;
      const last = lines.at(-1);
      if (last?.isOpen && last.isError === isError) {
        extend(last, part);
        last.isOpen = isLast;
      } else {
        const line: Line = { text: "", isCut: false, time: event.timestamp, isError, isOpen: isLast };
        extend(line, part);
        lines.push(line);
      }
    }
  }
}

/** One line of two, where the second goes on with the first. */
export function joined(first: Line | undefined, second: Line | undefined): Line | null {
  if (!first?.isOpen || !second || first.isError !== second.isError) return null;
  const line = { ...first };
  extend(line, second.text);
  line.isCut ||= second.isCut;
  line.isOpen = second.isOpen;
  return line;
}

/** Puts more text into a line. */
function extend(line: Line, more: string): void {
  if (line.isCut && !more.includes("\r")) return;
  const text = overwritten(line.text + more);
  line.isCut = text.length > LONGEST;
  line.text = text.slice(0, LONGEST);
}

/** What is left on the screen after carriage returns, as progress bars use them. */
function overwritten(text: string): string {
  if (!text.includes("\r")) return text;
  let end = text.length;
  while (text[end - 1] === "\r") end -= 1;
  const shown = text.slice(0, end);
  const rest = text.slice(shown.length);
  return shown.slice(shown.lastIndexOf("\r") + 1) + rest;
}

/** Events that are not among those known already, which may be said again at the seam. */
export function unknown(events: LogEvent[], known: LogEvent[]): LogEvent[] {
  const key = (event: LogEvent) => `${event.timestamp} ${event.log_source} ${event.message}`;
  const counts = new Map<string, number>();
  for (const event of known) counts.set(key(event), (counts.get(key(event)) ?? 0) + 1);
  return events.filter((event) => {
    const times = counts.get(key(event)) ?? 0;
    counts.set(key(event), times - 1);
    return times <= 0;
  });
}

/** What runners and servers write into output in the place of what is lost, or left out. */
const LOSS = /^\[(?:\d+ bytes of log were lost: .*|output is left out here: .*)\]$/;

/** Whether a line says that output is missing. */
export function tellsOfLoss(text: string): boolean {
  return text.startsWith("[") && LOSS.test(text);
}

/** Indexes of lines that contain what is looked for, whatever the case. */
export function matches(texts: string[], wanted: string): number[] {
  const needle = wanted.toLowerCase();
  if (needle === "") return [];
  const found: number[] = [];
  for (const [at, text] of texts.entries()) if (text.toLowerCase().includes(needle)) found.push(at);
  return found;
}

/** A text in pieces, of which every second one is what is looked for, whatever the case. */
export function split(text: string, wanted: string): string[] {
  const needle = wanted.toLowerCase();
  const lower = text.toLowerCase();
  // In a few scripts letters in small are of another length: then places in one text are not those in the other.
  if (needle === "" || lower.length !== text.length) return [text];
  const pieces: string[] = [];
  let from = 0;
  for (let at = lower.indexOf(needle); at >= 0; at = lower.indexOf(needle, from)) {
    pieces.push(text.slice(from, at), text.slice(at, at + needle.length));
    from = at + needle.length;
  }
  return [...pieces, text.slice(from)];
}
