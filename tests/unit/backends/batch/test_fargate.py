"""Sizes of Fargate."""

import pytest

from farcall.model.errors import SettingsError
from tests.unit.backends.batch.test_documents import FARGATE, MATRIX, resources


@pytest.mark.parametrize("vcpu", MATRIX)
def test_fargate_memory_is_rounded_up(vcpu):
    wanted = [mib for step in MATRIX[vcpu] for mib in (step - 1, step)]
    found = [
        resources(vcpu=vcpu, memory=mib / 1024, job_definition_extra=FARGATE) for mib in wanted
    ]
    assert [item["MEMORY"] for item in found] == [str(s) for s in MATRIX[vcpu] for _ in range(2)]
    assert {item["VCPU"] for item in found} == {f"{vcpu:g}"}


@pytest.mark.parametrize("vcpu", MATRIX)
def test_excess_memory_is_rejected_on_fargate(vcpu):
    with pytest.raises(SettingsError, match="raise vcpu") as caught:
        resources(vcpu=vcpu, memory=(MATRIX[vcpu][-1] + 1) / 1024, job_definition_extra=FARGATE)
    assert caught.value.option == "memory"


def test_unsupported_fargate_resources_are_rejected():
    with pytest.raises(SettingsError, match=r"use one of 0\.25, 0\.5, 1, 2, 4, 8, 16, 32"):
        resources(vcpu=3, job_definition_extra=FARGATE)
    with pytest.raises(SettingsError, match="num_gpus=1 is not supported"):
        resources(num_gpus=1, job_definition_extra=FARGATE)
