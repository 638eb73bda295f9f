"""Requests as JSON."""

import json

from farcall import Nodes, Settings
from farcall.cli import plan


async def test_value_of_secret_name_is_hidden():
    settings = Settings(environment={"API_KEY": "hunter2", "MODE": "exact"})
    planned = await plan.of_command(settings, [Nodes(1, "alpine", ["true"])], None, offline=True)
    variables = planned["SubmitJob"]["containerOverrides"]["environment"]
    assert {"name": "API_KEY", "value": "***"} in variables
    assert {"name": "MODE", "value": "exact"} in variables
    assert "hunter2" not in json.dumps(planned)
