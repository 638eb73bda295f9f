"""Output, which comes in chunks, as lines. No I/O."""

from __future__ import annotations

import codecs


class Lines:
    """Cuts the chunks of streams into lines, and knows how much of each it has seen."""

    def __init__(self) -> None:
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._begun: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        self._attempt = 0

    def add(self, stream: str, data: bytes, attempt: int = 0) -> list[str]:
        """Return the lines that end in a chunk."""
        if attempt > self._attempt:  # another attempt begins its streams anew
            self._attempt = attempt
            self._seen.clear()
        decoder = self._decoders.setdefault(
            stream, codecs.getincrementaldecoder("utf-8")(errors="replace")
        )
        self._seen[stream] = self._seen.get(stream, 0) + len(data)
        text = self._begun.get(stream, "") + decoder.decode(data)
        *lines, self._begun[stream] = text.split("\n")
        return lines

    def add_rest_of(self, stream: str, whole: bytes) -> None:
        """Take in what comes after the part that was seen, given the whole stream."""
        self._begun[stream] = "\n".join(
            [*self.add(stream, whole[self._seen.get(stream, 0) :]), self._begun.get(stream, "")]
        )

    def end(self, stream: str) -> list[str]:
        """Return the lines that were not given out yet, the last one whether or not it ends."""
        *lines, last = self._begun.pop(stream, "").split("\n")
        return [*lines, last] if last else lines
