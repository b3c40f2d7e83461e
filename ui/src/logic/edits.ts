/** Edits of what others may edit too. The server takes the last one; so it is looked at once more before. */

/** Which of these fields are not as they were when the edit began. */
export function changedSince<T extends object, K extends keyof T>(before: T, now: T, fields: K[]): K[] {
  return fields.filter((field) => JSON.stringify(before[field]) !== JSON.stringify(now[field]));
}

/** Somebody else was quicker. */
export class ChangedMeanwhile extends Error {
  override name = "ChangedMeanwhile";
  constructor(what: string, fields: string[] = []) {
    super(`Somebody else has changed ${what} meanwhile${fields.length > 0 ? ` (${fields.join(", ")})` : ""}, so nothing was saved. Load the page anew to edit what is so now.`);
  }
}
