"""A warm worker's processes: what they read from each other."""

import os

from farcall_runtime.worker_inbox import Lines


def test_lines_that_arrive_together_are_all_read():
    reads, writes = os.pipe()
    lines = Lines(reads)
    os.write(writes, b"one\ntwo\nthr")
    assert lines.read() == [b"one", b"two"]
    os.write(writes, b"ee\n")
    os.close(writes)
    assert lines.read() == [b"three"]
    assert lines.at_end
