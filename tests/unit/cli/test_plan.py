"""Requests as JSON."""

import json

from farcall import Nodes, ServiceError, Settings
from farcall.aws.error_translation import CODE_NO_CREDENTIALS
from farcall.cli import plan


async def test_value_of_secret_name_is_hidden():
    settings = Settings(environment={"API_KEY": "hunter2", "MODE": "exact"})
    planned = await plan.of_command(settings, [Nodes(1, "alpine", ["true"])], None, offline=True)
    variables = planned["SubmitJob"]["containerOverrides"]["environment"]
    assert {"name": "API_KEY", "value": "***"} in variables
    assert {"name": "MODE", "value": "exact"} in variables
    assert "hunter2" not in json.dumps(planned)


async def test_dry_run_without_credentials_is_offline(capsys):
    async def planned(offline):
        if not offline:
            raise ServiceError("none", code=CODE_NO_CREDENTIALS)
        return {"SubmitJob": {}}

    assert await plan.with_account(planned, offline=False) == {"SubmitJob": {}}
    assert "no AWS credentials were found" in capsys.readouterr().err
