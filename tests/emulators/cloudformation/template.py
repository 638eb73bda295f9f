"""CloudFormation templates: parameters, conditions, functions and the order of resources.

Supports what farcall's own template contains; cfn-lint checks that template. No I/O.

Source:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/intrinsic-function-reference.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from farcall_local import names

_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_NO_VALUE = object()

#: Returns the value of a resource: its physical ID (None), or an attribute.
Look = Callable[[str, "str | None"], Any]


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """YAML with CloudFormation's short forms, such as ``!Ref``."""


def _short_form(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    else:
        value = loader.construct_sequence(node, deep=True)
    return {tag if tag in ("Ref", "Condition") else f"Fn::{tag}": value}


_Loader.add_multi_constructor("!", _short_form)


class Template:
    """A template with the values of its parameters.

    Args:
        text: YAML.
        given: Values of the parameters that do not have their defaults.
        stack: The stack's name.

    Attributes:
        text: YAML.
        parameters: Values of all parameters, as text.
        resources: Definitions of the resources whose condition holds, by logical ID.
        needs: For each of them, the resources that it refers to.
        waves: The resources in groups, each after those that its members need.
    """

    def __init__(self, text: str, given: Mapping[str, str], stack: str) -> None:
        self.text = text
        self._document = yaml.load(text, _Loader)
        slots = self._document["Parameters"]
        self.parameters = {
            name: given.get(name, str(slots[name].get("Default"))) for name in slots
        }
        self._values: dict[str, Any] = {
            name: value.split(",") if slots[name]["Type"].startswith("List<") else value
            for name, value in self.parameters.items()
        }
        self._values.update(
            {
                "AWS::AccountId": names.ACCOUNT_ID,
                "AWS::NoValue": _NO_VALUE,
                "AWS::Partition": "aws",
                "AWS::Region": names.REGION,
                "AWS::StackName": stack,
                "AWS::URLSuffix": "amazonaws.com",
            }
        )
        self.resources: dict[str, dict[str, Any]] = self._made("Resources")
        self.needs = {name: self._references(each) for name, each in self.resources.items()}
        self.waves: list[list[str]] = []
        done: set[str] = set()
        while len(done) < len(self.needs):
            self.waves.append([n for n in self.needs if n not in done and self.needs[n] <= done])
            done.update(self.waves[-1])

    def outputs(self, look: Look) -> dict[str, str]:
        """Return the values of the outputs whose condition holds."""
        made = self._made("Outputs")
        return {name: self.evaluate(each["Value"], look) for name, each in made.items()}

    def evaluate(self, value: Any, look: Look) -> Any:
        """Return a part of the template with its functions evaluated."""
        match value:
            case list():
                return [self.evaluate(each, look) for each in value]
            case {"Ref": name}:
                return self._values[name] if name in self._values else look(name, None)
            case {"Fn::GetAtt": path}:
                return look(*path.split("."))
            case {"Fn::If": [condition, yes, no]}:
                return self.evaluate(yes if self._holds(condition) else no, look)
            case {"Fn::Split": [separator, text]}:
                return self.evaluate(text, look).split(separator)
            case {"Fn::Sub": text}:
                return _VARIABLE.sub(lambda m: self.evaluate({"Ref": m[1]}, look), text)
            case dict():
                pairs = {key: self.evaluate(each, look) for key, each in value.items()}
                return {key: each for key, each in pairs.items() if each is not _NO_VALUE}
        return value

    def _references(self, definition: dict[str, Any]) -> set[str]:
        found: set[str] = set()

        def look(name: str, attribute: str | None) -> str:
            found.add(name)
            return ""

        self.evaluate(definition["Properties"], look)
        return found

    def _made(self, section: str) -> dict[str, dict[str, Any]]:
        return {
            name: each
            for name, each in self._document[section].items()
            if "Condition" not in each or self._holds(each["Condition"])
        }

    def _holds(self, name: str) -> bool:
        return self._is_true(self._document["Conditions"][name])

    def _is_true(self, test: dict[str, Any]) -> bool:
        match test:
            case {"Condition": name}:
                return self._holds(name)
            case {"Fn::Not": [other]}:
                return not self._is_true(other)
            case {"Fn::Or": others}:
                return any(map(self._is_true, others))
            case {"Fn::Equals": [{"Ref": name}, text]}:
                return bool(self.parameters[name] == text)
        raise NotImplementedError(f"condition {test}")
