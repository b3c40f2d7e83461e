/** Command lines that do what a button does. */

const SAFE = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** A word of a shell, quoted where it must be. */
export function quoted(word: string): string {
  return SAFE.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** `dstack` with these words; a project is named at the end. */
export function dstack(words: string[], project?: string): string {
  const all = project === undefined ? words : [...words, "--project", project];
  return ["dstack", ...all].map(quoted).join(" ");
}

/** One line for each of several. */
export function each<T>(items: T[], line: (item: T) => string): string {
  return items.map(line).join("\n");
}

/** Adds a project to a command line's configuration. The token is left for the reader to put in unless it is to be shown. */
export function addProject(name: string, url: string, token: string): string {
  return `dstack project add --name ${quoted(name)} --url ${quoted(url)} --token ${token.startsWith("$") ? token : quoted(token)}`;
}
