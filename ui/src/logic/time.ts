/** How times are shown. */

/** Seconds as their two largest units: `45s`, `3m 20s`, `2h 5m`, `3d 4h`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const units: [number, string][] = [
    [86400, "d"],
    [3600, "h"],
    [60, "m"],
    [1, "s"],
  ];
  const parts: string[] = [];
  let rest = whole;
  for (const [size, name] of units) {
    const times = Math.floor(rest / size);
    if (times > 0) parts.push(`${times}${name}`);
    else if (parts.length > 0) break;
    rest -= times * size;
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0s";
}

/** How long ago: `just now`, `5m ago`, `3d ago`; `in 5m` for what is to come. */
export function ago(time: string, now: number): string {
  const seconds = (now - Date.parse(time)) / 1000;
  const size = Math.abs(seconds);
  if (size < 5) return "just now";
  const [largest = "0s"] = duration(size).split(" ");
  return seconds < 0 ? `in ${largest}` : `${largest} ago`;
}

/** Seconds between two times; until now while the second is not known. */
export function between(from: string, to: string | null | undefined, now: number): number {
  return Math.max(0, ((to ? Date.parse(to) : now) - Date.parse(from)) / 1000);
}

/** `2026-03-01 14:05:09` in the reader's zone. */
export function exact(time: string): string {
  const date = new Date(time);
  const two = (value: number) => String(value).padStart(2, "0");
  return (
    `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
  );
}

/** `2026-03-01 14:05:09 +01:00`: the same with the reader's zone. */
export function exactInZone(time: string): string {
  const minutes = -new Date(time).getTimezoneOffset();
  const two = (value: number) => String(value).padStart(2, "0");
  return `${exact(time)} ${minutes < 0 ? "-" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
}

/** `14:05:09` in the reader's zone. */
export function clock(time: string): string {
  return exact(time).slice(11);
}
