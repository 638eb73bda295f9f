"""Line splitter: output, which comes in chunks, as lines. No I/O."""

from __future__ import annotations

import codecs

from farcall.model.output import Bytes


class Lines:
    """Cuts the chunks of an attempt's streams into lines, and knows how much it has seen."""

    def __init__(self) -> None:
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._begun: dict[str, str] = {}
        self._seen: dict[str, int] = {}

    def add(self, stream: str, data: Bytes) -> list[str]:
        """Return the lines that end in a chunk."""
        decoder = self._decoders.setdefault(
            stream, codecs.getincrementaldecoder("utf-8")(errors="replace")
        )
        self._seen[stream] = self._seen.get(stream, 0) + len(data)
        text = self._begun.get(stream, "") + decoder.decode(data)
        *lines, self._begun[stream] = text.split("\n")
        return lines

    def add_rest_of(self, stream: str, whole: Bytes) -> list[str]:
        """Return the lines that end in what was not seen yet, given the whole stream."""
        return self.add(stream, whole[self._seen.get(stream, 0) :])

    def seen(self, stream: str) -> int:
        """Return how many bytes were seen."""
        return self._seen.get(stream, 0)

    def end(self, stream: str) -> list[str]:
        """Return the last line if it does not end; nothing comes after it."""
        decoder = self._decoders.get(stream)
        rest = decoder.decode(b"", final=True) if decoder is not None else ""
        last = self._begun.pop(stream, "") + rest
        return [last] if last else []
