"""``farcall demo``.

Starts the local AWS emulator. The test is slow, because the demo trains a model.
"""

import re

import pytest

from tests.support.commands import run_installed


@pytest.mark.slow
def test_demo_prints_score_and_next_step():
    done = run_installed("demo", "--tasks", "4")

    assert 0 == done.returncode, done.stderr
    score = re.search(r"its score is ([\d.]+)", done.stdout)
    assert score is not None
    assert 0.5 < float(score[1]) <= 1
    for expected in (
        "stdout | process",
        "pi is about",
        "train_svm",
        "Succeeded",
        "farcall demo --page",
    ):
        assert expected in done.stdout
