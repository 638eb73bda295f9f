import copy

import pytest

from farcall import Nodes, Settings, SettingsError
from farcall.backends.base import JobSpec
from farcall.backends.batch import edited_requests
from farcall.backends.batch.documents import OWN_PREFIX, definition, job_request
from farcall.model.errors import TaskTooLargeError

ARN = "arn:aws:batch:us-east-1:1:job-definition/farcall-0:1"
ROLE = "arn:aws:iam::ACCOUNT:role/worker"


def planned(*counts):
    """Return requests like those of a plan."""
    groups = tuple(Nodes(count, "alpine:3", ["echo"], {"A": "1"}) for count in counts or (1,))
    job = JobSpec("hello-1", 1, {}, Settings(vcpu=1), groups)
    made = definition(job, image="", region="us-east-1", job_role=ROLE, execution_role="")
    return {
        "RegisterJobDefinition": {"jobDefinitionName": made.name, **made.document},
        "SubmitJob": job_request(job, "(unknown)"),
    }


def spec(requests, **options):
    settings = Settings(**{"queue": "other", **options})
    return JobSpec("hello-2", 1, {"FARCALL_RUN": "me-1"}, settings, requests=requests)


def test_unedited_definition_keeps_its_name():
    requests = planned()
    written = requests["RegisterJobDefinition"]["jobDefinitionName"]
    assert edited_requests.edited_definition(requests, {}).name == written


def test_edited_definition_has_another_name():
    requests = planned()
    before = edited_requests.edited_definition(requests, {})
    requests["RegisterJobDefinition"]["containerProperties"]["user"] = "guest"
    after = edited_requests.edited_definition(requests, {})
    assert after.name != before.name
    assert after.document["containerProperties"]["user"] == "guest"


def test_roles_are_resolved_in_every_container():
    found = edited_requests.edited_definition(
        planned(1, 2), {ROLE: "arn:aws:iam::1:role/x/worker"}
    ).document
    ranges = found["nodeProperties"]["nodeRangeProperties"]
    assert [each["container"]["jobRoleArn"] for each in ranges] == [
        "arn:aws:iam::1:role/x/worker"
    ] * 2


def test_definition_with_command_is_named_accordingly():
    requests = planned()
    requests["RegisterJobDefinition"]["containerProperties"]["command"] = ["sleep", "1"]
    assert edited_requests.edited_definition(requests, {}).name.startswith(OWN_PREFIX)


def test_job_values_replace_those_of_plan():
    request = edited_requests.edited_request(spec(planned()), ARN)
    assert (request["jobName"], request["jobQueue"]) == ("hello-2", "other")
    assert request["jobDefinition"] == ARN
    assert request["containerOverrides"]["environment"] == [
        {"name": "A", "value": "1"},
        {"name": "FARCALL_RUN", "value": "me-1"},
    ]


def test_each_node_group_gets_variables():
    request = edited_requests.edited_request(spec(planned(1, 2)), ARN)
    each = request["nodeOverrides"]["nodePropertyOverrides"]
    assert [one["containerOverrides"]["environment"][-1]["value"] for one in each] == ["me-1"] * 2


@pytest.mark.parametrize("counts", [(1,), (1, 2)])
def test_variables_are_added_without_overrides(counts):
    requests = planned(*counts)
    requests["SubmitJob"].pop("containerOverrides", None)
    requests["SubmitJob"].pop("nodeOverrides", None)
    request = edited_requests.edited_request(spec(requests), ARN)
    found = (
        request.get("containerOverrides")
        or (request["nodeOverrides"]["nodePropertyOverrides"][-1]["containerOverrides"])
    )
    assert found == {"environment": [{"name": "FARCALL_RUN", "value": "me-1"}]}


def test_other_fields_are_sent_unchanged():
    requests = planned()
    requests["SubmitJob"]["dependsOn"] = [{"jobId": "1"}]
    assert edited_requests.edited_request(spec(requests), ARN)["dependsOn"] == [{"jobId": "1"}]


def test_input_is_not_modified():
    requests = planned(1, 2)
    before = copy.deepcopy(requests)
    edited_requests.edited_definition(requests, {ROLE: "x"})
    edited_requests.edited_request(spec(requests), ARN)
    assert requests == before


def test_oversized_command_is_rejected():
    requests = planned()
    requests["SubmitJob"]["containerOverrides"]["command"] = ["x" * 9000]
    with pytest.raises(TaskTooLargeError, match="8192"):
        edited_requests.edited_request(spec(requests), ARN)


def test_missing_request_is_named():
    with pytest.raises(SettingsError, match="no SubmitJob"):
        edited_requests.edited_request(spec({}), ARN)
