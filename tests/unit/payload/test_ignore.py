"""The rules of .dockerignore, with examples of the Docker documentation and edge cases."""

import pytest

from farcall.model.errors import SettingsError
from farcall.payload.ignore import Ignore


def left_out(lines, *paths):
    ignore = Ignore(lines)
    return [path for path in paths if ignore.leaves_out(path)]


@pytest.mark.parametrize(
    ("pattern", "out", "stays"),
    [
        ("temp", ["temp", "temp/a", "temp/a/b"], ["tempo", "a/temp", "x"]),
        ("*/temp*", ["a/temporary.txt", "a/temp", "a/temp/b"], ["temp", "a/b/temp"]),
        ("*/*/temp*", ["a/b/temporary.txt"], ["a/temp", "a/b/c/temp"]),
        ("temp?", ["tempa", "tempb/x"], ["temp", "tempab"]),
        ("**/*.go", ["a.go", "a/b/c.go"], ["a.goo", "go"]),
        ("**/__pycache__", ["__pycache__/a.pyc", "a/b/__pycache__/x"], ["a/__pycache__x"]),
        ("docs/**", ["docs/a", "docs/a/b"], ["docs", "doc"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b/c"], ["a/x", "b"]),
        ("*.md", ["README.md"], ["docs/README.md"]),
        ("/foo/bar", ["foo/bar", "foo/bar/x"], ["bar", "x/foo/bar"]),
        ("./foo/../bar/", ["bar", "bar/x"], ["foo"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "-x"]),
        ("a[^a-c]x", ["adx", "a-x"], ["aax", "a/x"]),
        (r"[\]\-]", ["]", "-"], ["a"]),
        ("[[&&~]", ["[", "&", "~"], ["a"]),
        (r"\*", ["*"], ["a"]),
        ("a.b+c$", ["a.b+c$"], ["aXb+c$", "a.bbc$"]),
        ("**", ["a", "a/b", ".x"], []),
        ("line\tbreak", ["line\tbreak"], ["linebreak"]),
    ],
)
def test_pattern_matches_like_docker(pattern, out, stays):
    assert left_out([pattern], *out, *stays) == out


def test_comments_and_empty_lines_are_ignored():
    assert left_out(["# a", "", "   ", ".", "/"], "a", "# a", "b/c") == []
    assert left_out([" # not a comment"], "# not a comment") == ["# not a comment"]


def test_last_matching_line_decides():
    lines = ["*.md", "!README*.md", "README-secret.md"]
    assert left_out(lines, "a.md", "README.md", "README-secret.md") == ["a.md", "README-secret.md"]
    lines = ["*.md", "README-secret.md", "!README*.md"]
    assert left_out(lines, "a.md", "README.md", "README-secret.md") == ["a.md"]


def test_files_in_excluded_folder_can_return():
    ignore = Ignore(["data", "!data/small/*.csv"])
    assert ignore.leaves_out("data/large.bin")
    assert not ignore.leaves_out("data/small/a.csv")
    assert not ignore.leaves_out_all_of("data")
    assert not ignore.leaves_out_all_of("data/small")
    assert ignore.leaves_out_all_of("data/other")
    assert Ignore(["data"]).leaves_out_all_of("data")
    assert not Ignore(["data", "!**/keep"]).leaves_out_all_of("data/deep/down")


@pytest.mark.parametrize("line", ["a[", "[]", "a\\", "!", "[b-a]"])
def test_invalid_pattern_is_reported_with_line(line):
    with pytest.raises(SettingsError, match=r"^\S+, line 2: .* is not a valid pattern"):
        Ignore(["fine", line])


@pytest.mark.parametrize("pattern", ["*a" * 25, "**/" * 25 + "x", "[a-b]*" * 25 + "c"])
def test_many_asterisks_are_matched_in_steps(pattern):
    path = "/".join(["a" * 200 + "-"] * 30)
    assert not Ignore([pattern]).leaves_out(path)


def test_last_line_takes_path_back():
    ignore = Ignore(["*.pem", "!public.pem"])
    assert ignore.takes_back("public.pem")
    assert not ignore.takes_back("server.pem")
    assert not ignore.takes_back("other")
