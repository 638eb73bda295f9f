import pytest

from farcall.backends.kubernetes.quantities import quantity, resources


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("500m", 0.5),
        ("1Gi", 2**30),
        ("1.5G", 1.5e9),
        ("3e2", 300),
        ("128974848", 128974848),
        ("1x", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_quantities_are_parsed(text, number):
    assert quantity(text) == number


def test_requested_resources_are_read():
    limits = {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "2", "amd.com/gpu": 1}
    assert resources(limits) == (1.5, 1024, 3)
    assert resources({}) == (0, 0, 0)
