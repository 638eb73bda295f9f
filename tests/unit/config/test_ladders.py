"""Options whose value is a list of which a failed task gets the next value."""

import pickle

import pytest

from farcall import Settings, SettingsError
from farcall.config.ladders import Ladders, read_rungs


@pytest.mark.parametrize(
    "given", [[2, "8GiB", 32], (2, 8, 32), "2, 8GiB, 32", "[2, 8, 32]"], ids=repr
)
def test_list_of_memory_is_a_ladder(given):
    settings = Settings(memory=given)
    assert settings.memory == 2
    assert settings.ladders.memory == (2, 8, 32)
    assert settings.ladders.more_memory(2) == {"memory": 8}
    assert settings.ladders.more_memory(32) == {}


def test_ladders_come_from_file_and_environment(tmp_path, monkeypatch):
    path = tmp_path / "farcall.toml"
    path.write_text("[executors.awsbatch]\nmemory = [1, 2]\nvcpu = [1, 4]\n")
    monkeypatch.setenv("FARCALL_CONFIG", str(path))
    monkeypatch.setenv("FARCALL_QUEUE", "spot, on-demand")
    settings = Settings()
    assert settings.ladders.more_memory(1) == {"memory": 2, "vcpu": 4}
    assert settings.queue == "spot"
    assert settings.ladders.next_queue("arn:aws:batch:x:1:job-queue/spot") == {
        "queue": "on-demand"
    }
    assert settings.ladders.next_queue("on-demand") == {}
    assert settings.ladders.next_queue("another") == {}


def test_ladder_survives_other_options():
    settings = Settings(memory=[2, 8], vcpu=[1, 2])
    assert settings.replace(time_limit=90).ladders == settings.ladders
    assert settings.with_options(memory=8).ladders == settings.ladders
    assert settings.fingerprint != Settings(memory=2, vcpu=1).fingerprint
    assert pickle.loads(pickle.dumps(settings)).ladders == settings.ladders
    assert settings.with_options(memory=8).replace(time_limit=90).memory == 8
    assert "memory=[2.0, 8.0]" in repr(settings)
    once = settings.replace(memory=4)
    assert (once.memory, once.vcpu, once.ladders.memory) == (4, 1, ())


def test_patience_belongs_to_list_of_queues(monkeypatch):
    monkeypatch.setenv("FARCALL_QUEUE", "spot, on-demand")
    monkeypatch.setenv("FARCALL_QUEUE_PATIENCE", "10m")
    settings = Settings()
    assert settings.queue_patience == 600
    single = settings.replace(queue="other")
    assert single.queue_patience is None
    assert single.with_ladders_of(settings).queue_patience == 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": []}, "memory is an empty list; use at least one value"),
        ({"memory": [8, 2]}, "memory is 8, 2: each value must be larger"),
        ({"memory": [2, "8 gigs"]}, "memory is '8 gigs'"),
        ({"memory": [2, 4], "vcpu": [1, 2, 3]}, "vcpu is 1, 2, 3: use one value, or one for each"),
        ({"vcpu": [1, 2]}, "vcpu is 1, 2: use one value"),
        ({"queue": ["a", "a"]}, "queue is a, a: name each queue once"),
        ({"queue_patience": "10m"}, "queue_patience is 600 s, but there is no next queue"),
    ],
)
def test_wrong_ladder_is_named(options, message):
    with pytest.raises(SettingsError, match=message):
        Settings(**options)


@pytest.mark.parametrize(
    ("gib", "queue", "text"),
    [
        (2, "spot", "memory=1/3,queue=1/2"),
        (8.0005, "arn:aws:batch:x:1:job-queue/od", "memory=2/3,queue=2/2"),
        (1, "another", ""),
    ],
)
def test_rungs_are_positions_in_lists(gib, queue, text):
    assert Ladders((2, 8, 32), (), ("spot", "od")).rungs(gib, queue) == text


@pytest.mark.parametrize(
    ("text", "rungs"),
    [
        ("memory=2/3,queue=1/2", {"memory": (2, 3), "queue": (1, 2)}),
        ("memory=4/3,queue=0/2,vcpu=1/2,memory=1", {}),
        ("", {}),
    ],
)
def test_implausible_rungs_are_ignored(text, rungs):
    assert read_rungs(text) == rungs


def test_later_values_are_checkable():
    settings = Settings(memory=[2, 8, 32], vcpu=[1, 2, 4], queue=["a", "b"])
    later = settings.with_options(memory=8.0, vcpu=2.0).later()
    assert [(each.memory, each.vcpu, each.queue) for each in later] == [(32, 4, "a"), (8, 2, "b")]
