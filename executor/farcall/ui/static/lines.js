// A task's output as a limited number of lines that are safe to show.

import { clean } from "./dom.js";

/** Maximum number of kept lines. */
export const MOST_LINES = 20000;
/** Maximum number of shown characters per line. */
const MOST_CHARACTERS = 20000;

// Terminal escape sequences: CSI, OSC and similar ones up to their end, and two-character ones.
const ESCAPES = /\u001b\[[0-?]*[ -/]*[@-~]|\u001b[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[ -/]*[0-~]|\u009b[0-?]*[ -/]*[@-~]/g;

/** Returns a line without escape sequences and control characters. */
export function shown(text) {
  let plain = text.replace(ESCAPES, "");
  if (plain.length > MOST_CHARACTERS) plain = `${plain.slice(0, MOST_CHARACTERS)}… (${plain.length} characters)`;
  return clean(plain);
}

/** The last lines of an output. */
export class Lines {
  constructor() {
    this.kept = [];
    this.dropped = 0;
    this.next = 0;
    /** The current state of progress bars by stream: unfinished lines that may be replaced. */
    this.states = new Map();
  }

  /** Adds lines from the server; returns the lines to show. */
  take(lines) {
    const taken = [];
    for (const line of lines) {
      const one = { text: shown(line.text), stream: line.stream, attempt: line.attempt, at: line.at };
      this.states.delete(line.stream);
      if (!line.goes_on) taken.push({ n: this.next++, ...one });
      else if (line.text) this.states.set(line.stream, one);
    }
    this.kept.push(...taken);
    if (this.kept.length > MOST_LINES) this.dropped += this.kept.splice(0, this.kept.length - MOST_LINES).length;
    return taken.slice(-MOST_LINES);
  }

  /** Returns the kept lines of a stream, or all, as text. */
  text(stream) {
    const wanted = this.kept.filter((line) => !stream || line.stream === stream);
    return wanted.map((line) => line.text).join("\n") + (wanted.length ? "\n" : "");
  }
}
