"""Shell commands of the documentation, run by a shell, with what they need of the AWS CLI.

``aws SERVICE OPERATION --option VALUE ...`` becomes the call it is for the AWS CLI, by the same
service models: an option is a parameter of the operation, its value is read as the parameter's
type says, from a file where it begins with ``file://``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
from botocore import xform_name

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[str]:
    """Return the shell commands of a page of the documentation, by block."""
    return re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def run(script: str, environment: dict[str, str], folder: Path) -> None:
    """Run shell commands, until one fails.

    Args:
        script: The commands.
        environment: Variables that lead AWS clients to the right place.
        folder: Where the commands write files.
    """
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, words in {"aws": f'"{__file__}"', "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-euc", script],
        env={**os.environ, **environment, "PATH": path},
        cwd=folder,
        check=True,
    )


def main(service: str, operation: str, *words: str) -> None:
    """Make a call and write its answer."""
    options: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            options[word[2:]] = values = []
        else:
            values.append(word)
    region = options.pop("region", [None])[0]
    client = boto3.client(service, region_name=region)
    name = client.meta.method_to_api_mapping[operation.replace("-", "_")]
    members = client.meta.service_model.operation_model(name).input_shape.members
    shapes = {xform_name(member, "-"): (member, shape) for member, shape in members.items()}
    parameters = {}
    for option, values in options.items():
        member, shape = shapes[option]
        parameters[member] = read(shape, values)
    reply = getattr(client, operation.replace("-", "_"))(**parameters)
    del reply["ResponseMetadata"]
    print(json.dumps(reply))


def read(shape: Any, values: list[str]) -> Any:
    """Return what an option's words say."""
    texts = [_text(value) for value in values]
    if shape.type_name == "list" and not texts[0].startswith("["):
        return [_item(shape.member, text) for text in texts]
    (text,) = texts
    return json.loads(text) if shape.type_name in ("list", "map", "structure") else text


def _item(shape: Any, text: str) -> Any:
    """Read ``Name=value,Name=value``, or a word."""
    if shape.type_name != "structure":
        return text
    return dict(pair.split("=", 1) for pair in text.split(","))


def _text(value: str) -> str:
    return Path(value[7:]).read_text() if value.startswith("file://") else value


if __name__ == "__main__":
    main(*sys.argv[1:])
