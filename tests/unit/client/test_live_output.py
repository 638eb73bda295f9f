"""Live output of jobs, and notes on omitted lines."""

import pytest

from farcall.client.live_output import LiveOutput
from farcall.model.output import LogLine
from tests.support import hostile


class Time:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def live(time):
    return LiveOutput(time)


def lines(*texts, stream="stdout"):
    return [LogLine(text, stream, 1, None) for text in texts]


def test_lines_are_prefixed_per_stream(live, capsys):
    live.write("fit[3]", "run", [*lines("a"), *lines("oh", stream="stderr"), *lines("b")])
    assert capsys.readouterr() == ("fit[3] | a\nfit[3] | b\n", "fit[3] | oh\n")


def test_control_sequences_are_escaped(live, capsys):
    live.write(f"fit{hostile.TEXT}", "run", lines(hostile.TEXT))
    out, _ = capsys.readouterr()
    assert hostile.MARK in out
    assert hostile.obeyed(out) == set()
    assert out.count("\n") == 1


def test_excess_output_is_omitted_with_note(live, time, capsys):
    live.write("a", "run-1", lines(*map(str, range(150))))
    live.write("b", "run-1", lines(*map(str, range(1300))), left_out_bytes=2_500_000)
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (200, "")

    time.now += 1.5
    live.write("a", "run-1", lines("again"))
    assert capsys.readouterr() == ("a | again\n", "")  # too soon for a note
    time.now += 4
    live.write("a", "run-1", lines("later"))
    out, err = capsys.readouterr()
    assert out == "a | later\n"
    assert err == ("... 1,250 lines and 2.5 MB of 1 job omitted; see farcall logs --run run-1\n")
    live.settle()
    assert capsys.readouterr().err == ""  # only one note


def test_settle_reports_omitted_lines_at_once(live, capsys):
    live.write("a", "run-1", lines(*["x"] * 201))
    live.write("b", "run-1", lines("x"))
    capsys.readouterr()
    live.settle()
    assert (
        capsys.readouterr().err == "... 2 lines of 2 jobs omitted; see farcall logs --run run-1\n"
    )


def test_broken_stream_does_not_raise(live, monkeypatch, tmp_path):
    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        live.write("a", "run", lines("\u00fc"))
    live.write("a", "run", lines("b"))
    monkeypatch.setattr("sys.stdout", None)
    live.write("a", "run", lines("c"))
    assert path.read_text() == "a | \\xfc\n"
