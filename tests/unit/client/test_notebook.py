"""What a notebook is given to show. A real one runs in tests/service/test_notebook.py."""

from __future__ import annotations

import pytest

from farcall.client.notebook import NotebookBar, is_here
from farcall.client.progress import Counts, Report


@pytest.fixture
def shown(monkeypatch):
    pictures = []

    class Output:
        def update(self, picture, *, raw):
            pictures.append(picture)

    def display(picture, *, raw, display_id):
        pictures.append(picture)
        return Output()

    monkeypatch.setattr("IPython.display.display", display)
    return pictures


def test_a_test_suite_is_no_notebook():
    assert not is_here()


def test_the_output_is_replaced_when_there_is_something_new(now, shown):
    report = Report("<lambda>", 4)
    bar = NotebookBar(report)
    bar.show()
    assert len(shown) == 1
    report.take(Counts(running=1, done=2, failed=1))
    bar.show()
    bar.close()
    assert len(shown) == 2
    assert shown[1]["text/plain"].startswith("<lambda>: 2 of 4 done, 1 failed, 1 running")
    assert "&lt;lambda&gt;" in shown[1]["text/html"]
    assert 'value="3" max="4"' in shown[1]["text/html"]


def test_trouble_is_told(now, shown):
    report = Report("work", 4)
    bar = NotebookBar(report)
    report.trouble = "S3 refuses <all>"
    bar.show()
    assert shown[1]["text/plain"].endswith("; S3 refuses <all>")
    assert "S3 refuses &lt;all&gt;" in shown[1]["text/html"]
