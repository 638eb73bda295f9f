// What a task printed, as lines that are safe to show; their number is limited.

import { clean } from "./dom.js";

/** The most lines that are kept. */
export const MOST_LINES = 20000;
/** The most characters of a line that are shown. */
const MOST_CHARACTERS = 20000;

// Sequences for terminals: CSI, OSC and its like up to their end, and the two-character ones.
const ESCAPES = /\u001b\[[0-?]*[ -/]*[@-~]|\u001b[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[ -/]*[0-~]|\u009b[0-?]*[ -/]*[@-~]/g;

/** Returns a line without sequences for terminals, and with nothing else that acts. */
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
    /** What progress bars show by now, by stream: lines that go on, and may be replaced. */
    this.states = new Map();
  }

  /** Takes lines as the server sends them; returns those to show. */
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
