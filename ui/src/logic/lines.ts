/** Lines of output from pieces of it. */

import type { LogEvent } from "../api/types";

export interface Line {
  text: string;
  time: string;
  isError: boolean;
  /** Whether more of this line may follow. */
  isOpen: boolean;
}

/** What a program printed, as text. */
export function decoded(message: string): string {
  const binary = atob(message);
  const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
  return new TextDecoder().decode(bytes);
}

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
        last.text = overwritten(last.text + part);
        last.isOpen = isLast;
      } else {
        lines.push({ text: overwritten(part), time: event.timestamp, isError, isOpen: isLast });
      }
    }
  }
}

/** Puts older events before lines. */
export function prepend(lines: Line[], older: LogEvent[]): Line[] {
  const before: Line[] = [];
  append(before, older);
  const [last, first] = [before.at(-1), lines[0]];
  if (last?.isOpen && first && last.isError === first.isError) {
    last.text = overwritten(last.text + first.text);
    last.isOpen = first.isOpen;
    return [...before, ...lines.slice(1)];
  }
  return [...before, ...lines];
}

/** What is left on the screen after carriage returns, as progress bars use them. */
function overwritten(text: string): string {
  if (!text.includes("\r")) return text;
  const shown = text.replace(/\r+$/, "");
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

/** Indexes of lines that contain what is looked for, whatever the case. */
export function matches(texts: string[], wanted: string): number[] {
  const needle = wanted.toLowerCase();
  if (needle === "") return [];
  const found: number[] = [];
  for (const [at, text] of texts.entries()) if (text.toLowerCase().includes(needle)) found.push(at);
  return found;
}
