/** Colours of terminals: from text with escape sequences to pieces of plain text, each with its look. */

export interface Look {
  /** 0 to 15: a colour of the page's palette; `#rrggbb` otherwise. */
  colour: number | string | null;
  background: number | string | null;
  bold: boolean;
  faint: boolean;
  italic: boolean;
  underline: boolean;
  inverse: boolean;
}

export interface Piece {
  text: string;
  look: Look;
}

const PLAIN: Look = {
  colour: null,
  background: null,
  bold: false,
  faint: false,
  italic: false,
  underline: false,
  inverse: false,
};

// Sequences of terminals: CSI, OSC and other strings up to their end, and single escapes. Those that were cut off are dropped as well.
const SEQUENCE = /\x1b\[([0-9;:<=>?]*)[ -/]*([@-~])|\x1b\[[0-9;:<=>?]*$|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?/g;
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]/g;

/** Pieces of one line. */
export function parse(line: string): Piece[] {
  const pieces: Piece[] = [];
  let look = PLAIN;
  let from = 0;
  const push = (text: string) => {
    const clean = text.replace(CONTROL, "");
    if (clean !== "") pieces.push({ text: clean, look });
  };
  for (const match of line.matchAll(SEQUENCE)) {
    push(line.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[2] === "m") look = changed(look, match[1] ?? "");
  }
  push(line.slice(from));
  return pieces;
}

/** The text alone. */
export function plain(line: string): string {
  return line.includes("\x1b") ? line.replace(SEQUENCE, "").replace(CONTROL, "") : line.replace(CONTROL, "");
}

function changed(before: Look, parameters: string): Look {
  const look = { ...before };
  const codes = parameters.split(/[;:]/).map(Number);
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at] ?? 0;
    if (code === 0) Object.assign(look, PLAIN);
    else if (code === 1) look.bold = true;
    else if (code === 2) look.faint = true;
    else if (code === 3) look.italic = true;
    else if (code === 4) look.underline = true;
    else if (code === 7) look.inverse = true;
    else if (code === 22) look.bold = look.faint = false;
    else if (code === 23) look.italic = false;
    else if (code === 24) look.underline = false;
    else if (code === 27) look.inverse = false;
    else if (code >= 30 && code <= 37) look.colour = code - 30;
    else if (code >= 40 && code <= 47) look.background = code - 40;
    else if (code >= 90 && code <= 97) look.colour = code - 82;
    else if (code >= 100 && code <= 107) look.background = code - 92;
    else if (code === 39) look.colour = null;
    else if (code === 49) look.background = null;
    else if (code === 38 || code === 48) {
      const [colour, used] = extended(codes.slice(at + 1));
      if (code === 38) look.colour = colour;
      else look.background = colour;
      at += used;
    }
  }
  return look;
}

/** A colour of 256 or of all, and how many numbers named it. */
function extended(codes: number[]): [number | string | null, number] {
  const byte = (value: number | undefined) => Math.min(255, Math.max(0, Math.trunc(value ?? 0) || 0));
  if (codes[0] === 2) return [hex(byte(codes[1]), byte(codes[2]), byte(codes[3])), 4];
  if (codes[0] !== 5) return [null, 0];
  const number = byte(codes[1]);
  if (number < 16) return [number, 2];
  if (number >= 232) {
    const grey = 8 + (number - 232) * 10;
    return [hex(grey, grey, grey), 2];
  }
  const level = (step: number) => (step === 0 ? 0 : 55 + step * 40);
  const cube = number - 16;
  return [hex(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6)), 2];
}

function hex(red: number, green: number, blue: number): string {
  return `#${[red, green, blue].map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
