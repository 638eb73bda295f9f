import linecache
import traceback

import pytest

from farcall.payload.tracebacks import with_source


@pytest.fixture
def script(tmp_path):
    """Return a file whose functions raise, and a function."""
    file = tmp_path / "script.py"
    file.write_text("def inner():\n    raise KeyError('x')\n\n\ndef outer():\n    inner()\n")
    names = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return file, names["outer"]


def remote(function):
    """Return the traceback that a machine without the sources would give."""
    try:
        function()
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = ["Traceback (most recent call last):\n"]
        lines += [f'  File "{f.filename}", line {f.lineno}, in {f.name}\n' for f in frames[1:]]
        return "".join([*lines, *traceback.format_exception_only(error)])


def test_source_lines_come_from_local_files(script):
    file, outer = script
    assert with_source(remote(outer)).splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{file}", line 6, in outer',
        "    inner()",
        f'  File "{file}", line 2, in inner',
        "    raise KeyError('x')",
        "KeyError: 'x'",
    ]


def test_traceback_with_source_is_unchanged(script):
    whole = with_source(remote(script[1]))
    assert with_source(whole) == whole


def test_missing_file_adds_no_line(script):
    file, outer = script
    text = remote(outer)
    file.unlink()
    linecache.checkcache()
    assert with_source(text) == text.rstrip("\n")


def test_exception_group_indentation_is_kept(script):
    file, outer = script
    text = "\n".join("  | " + line for line in remote(outer).splitlines())
    assert f'  |   File "{file}", line 2, in inner\n  |     raise' in with_source(text)
