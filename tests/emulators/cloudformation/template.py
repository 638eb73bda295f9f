"""CloudFormation templates: reading them, parameters, conditions and functions. No I/O.

Everything is text until a resource type needs a number: ``!Equals [!Ref N, 0]`` compares "0" with
"0". What is not known here is refused by name instead of being passed over.

Sources:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/intrinsic-function-reference.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/parameters-section-structure.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/rules-section-structure.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import yaml

from farcall_local import names
from tests.emulators.cloudformation.errors import StackError

#: The longest template that a request may carry itself.
MOST_BYTES = 51_200

_SECTIONS = {
    "AWSTemplateFormatVersion",
    "Conditions",
    "Description",
    "Mappings",
    "Metadata",
    "Outputs",
    "Parameters",
    "Resources",
    "Rules",
}
_ATTRIBUTES = {
    "Condition",
    "DeletionPolicy",
    "DependsOn",
    "Metadata",
    "Properties",
    "Type",
    "UpdateReplacePolicy",
}
_LOGICAL_ID = re.compile(r"[A-Za-z0-9]{1,255}")
_VARIABLE = re.compile(r"\$\{(!?)([^}]*)\}")

#: What `Template.evaluate` gives instead of ``!Ref AWS::NoValue``; its property goes.
NO_VALUE = object()

#: Gives the value of a resource: its own (None), or the one of an attribute.
Look = Callable[[str, "str | None"], Any]


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """YAML with CloudFormation's short forms, in which dates are text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _short_form(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if tag == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {tag if tag in ("Ref", "Condition") else f"Fn::{tag}": value}


_Loader.add_multi_constructor("!", _short_form)


class Template:
    """A template with the values of its parameters.

    Args:
        text: YAML or JSON.

    Attributes:
        text: As it was given.
        values: Of the parameters, as text or lists of text. Set by `choose`.

    Raises:
        StackError: It is no template.
    """

    def __init__(self, text: str) -> None:
        if len(text.encode()) > MOST_BYTES:
            raise StackError(
                "1 validation error detected: Value at 'templateBody' failed to satisfy "
                f"constraint: Member must have length less than or equal to {MOST_BYTES}"
            )
        self.text = text
        self.document = _read(text)
        self.values: dict[str, Any] = {}
        self.resources: dict[str, dict[str, Any]] = self.document["Resources"]
        self.parameters: dict[str, dict[str, Any]] = self.document.get("Parameters") or {}
        for name, resource in self.resources.items():
            _check_resource(name, resource)
        self._check_references()

    @property
    def description(self) -> str | None:
        """What it says of itself."""
        return self.document.get("Description")

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """The outputs, as they stand there."""
        return self.document.get("Outputs") or {}

    # --- parameters -------------------------------------------------------------------------

    def choose(self, given: Mapping[str, str], name: str, stack_id: str) -> None:
        """Set the parameters' values.

        Args:
            given: Those that do not have their defaults.
            name: Of the stack.
            stack_id: Its ARN.

        Raises:
            StackError: One is missing, unknown or out of its range, or a rule is broken.
        """
        self.values = {"AWS::StackId": stack_id, "AWS::StackName": name}
        unknown = [each for each in given if each not in self.parameters]
        if unknown:
            listed = ", ".join(unknown)
            raise StackError(f"Parameters: [{listed}] do not exist in the template")
        missing = [
            each
            for each, slot in self.parameters.items()
            if each not in given and "Default" not in slot
        ]
        if missing:
            raise StackError(f"Parameters: [{', '.join(missing)}] must have values")
        for each, slot in self.parameters.items():
            text = given.get(each, _text(slot.get("Default")))
            kind = slot.get("Type", "String")
            many = kind == "CommaDelimitedList" or kind.startswith("List<")
            parts = [part.strip() for part in text.split(",")] if many else [text]
            for part in parts:
                _check_value(each, slot, part)
            self.values[each] = parts if many else text
        self._check_rules()

    def _check_rules(self) -> None:
        for name, rule in (self.document.get("Rules") or {}).items():
            if "RuleCondition" in rule and not self._holds(rule["RuleCondition"]):
                continue
            for assertion in rule["Assertions"]:
                if not self._holds(assertion["Assert"]):
                    told = assertion.get("AssertDescription", "")
                    raise StackError(f"Template validation error: Rule {name} failed: {told}")

    # --- conditions -------------------------------------------------------------------------

    def condition(self, name: str) -> bool:
        """Return whether a condition holds."""
        conditions = self.document.get("Conditions") or {}
        if name not in conditions:
            raise StackError(f"Template format error: Unresolved condition dependency {name}")
        return self._holds(conditions[name])

    def _holds(self, test: Any) -> bool:
        if not isinstance(test, dict) or len(test) != 1:
            raise StackError("Template format error: Every condition must be a boolean function")
        ((function, value),) = test.items()
        if function == "Condition":
            return self.condition(value)
        if function == "Fn::Not":
            return not self._holds(value[0])
        if function == "Fn::And":
            return all(self._holds(each) for each in value)
        if function == "Fn::Or":
            return any(self._holds(each) for each in value)
        if function == "Fn::Equals":
            one, other = (self.evaluate(each, _no_resources) for each in value)
            return bool(_text(one) == _text(other))
        if function == "Fn::Contains":
            listed, wanted = (self.evaluate(each, _no_resources) for each in value)
            return _text(wanted) in [_text(each) for each in listed]
        raise StackError(f"farcall's emulated CloudFormation does not support {function}.")

    def is_made(self, name: str) -> bool:
        """Return whether a resource is to be there, by its condition."""
        resource = self.resources[name]
        return "Condition" not in resource or self.condition(resource["Condition"])

    # --- functions --------------------------------------------------------------------------

    def evaluate(self, value: Any, look: Look) -> Any:
        """Return a part of the template with its functions evaluated.

        Args:
            value: The part.
            look: Gives what resources are called.

        Raises:
            StackError: A function is unknown or cannot be evaluated.
        """
        if isinstance(value, list):
            found = [self.evaluate(each, look) for each in value]
            return [each for each in found if each is not NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((name, argument),) = value.items()
            if name in _FUNCTIONS:
                return _FUNCTIONS[name](self, argument, look)
            if name.startswith("Fn::"):
                raise StackError(f"farcall's emulated CloudFormation does not support {name}.")
        pairs = {key: self.evaluate(each, look) for key, each in value.items()}
        return {key: each for key, each in pairs.items() if each is not NO_VALUE}

    def _ref(self, name: str, look: Look) -> Any:
        if name in _PSEUDO:
            return _PSEUDO[name]
        if name in self.values:
            return self.values[name]
        return look(name, None)

    def _get_att(self, argument: Any, look: Look) -> Any:
        name, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
        return look(name, attribute)

    def _if(self, argument: Any, look: Look) -> Any:
        condition, yes, no = argument
        return self.evaluate(yes if self.condition(condition) else no, look)

    def _join(self, argument: Any, look: Look) -> str:
        separator, parts = argument
        return str(separator).join(map(_text, self.evaluate(parts, look)))

    def _split(self, argument: Any, look: Look) -> list[str]:
        separator, text = argument
        return _text(self.evaluate(text, look)).split(separator)

    def _select(self, argument: Any, look: Look) -> Any:
        index, listed = (self.evaluate(each, look) for each in argument)
        try:
            return listed[int(index)]
        except (IndexError, ValueError):
            raise StackError(
                f"Template error: Fn::Select cannot select nonexistent value at index {index}"
            ) from None

    def _sub(self, argument: Any, look: Look) -> str:
        text, own = (argument, {}) if isinstance(argument, str) else argument

        def put(match: re.Match[str]) -> str:
            literal, name = match.groups()
            if literal:
                return f"${{{name}}}"
            if name in own:
                return _text(self.evaluate(own[name], look))
            function = self._get_att if "." in name else self._ref
            return _text(function(name, look))

        return _VARIABLE.sub(put, text)

    def _find_in_map(self, argument: Any, look: Look) -> Any:
        found: Any = self.document.get("Mappings") or {}
        for key in argument:
            step = _text(self.evaluate(key, look))
            if step not in found:
                raise StackError(f"Template error: Unable to get mapping for {argument}")
            found = found[step]
        return found

    def _base64(self, argument: Any, look: Look) -> str:
        return base64.b64encode(_text(self.evaluate(argument, look)).encode()).decode()

    # --- references -------------------------------------------------------------------------

    def needed_by(self, name: str) -> set[str]:
        """Return the resources that one refers to, or names in DependsOn, and that are made."""
        resource = self.resources[name]
        found: set[str] = set()

        def look(other: str, attribute: str | None) -> str:
            found.add(other)
            return ""

        self.evaluate(resource.get("Properties") or {}, look)
        return {each for each in found | set(_depends_on(resource)) if self.is_made(each)}

    def in_order(self) -> list[str]:
        """Return the resources that are made, each after those that it needs.

        Raises:
            StackError: They need one another.
        """
        order: list[str] = []
        needs = {name: self.needed_by(name) for name in self.resources if self.is_made(name)}
        while len(order) < len(needs):
            ready = [n for n in needs if n not in order and needs[n] <= set(order)]
            if not ready:
                listed = ", ".join(name for name in needs if name not in order)
                raise StackError(f"Circular dependency between resources: [{listed}]")
            order += ready
        return order

    def _check_references(self) -> None:
        """Check that whatever is referred to is there."""
        resources = set(self.resources)
        known = resources | set(self.parameters) | set(_PSEUDO) | _OWN
        waited_for = {name for each in self.resources.values() for name in _depends_on(each)}
        for section in ("Resources", "Outputs"):
            missing = _references(self.document.get(section) or {}) - known
            missing |= waited_for - resources
            if missing:
                raise StackError(
                    "Template format error: Unresolved resource dependencies "
                    f"[{', '.join(sorted(missing))}] in the {section} block of the template"
                )


def _read(text: str) -> dict[str, Any]:
    try:
        document = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise StackError(f"Template format error: YAML not well-formed. ({error})") from None
    if not isinstance(document, dict):
        raise StackError("Template format error: unsupported structure.")
    unknown = set(document) - _SECTIONS
    if unknown:
        listed = ", ".join(sorted(map(str, unknown)))
        raise StackError(f"Invalid template property or properties [{listed}]")
    if not document.get("Resources"):
        raise StackError("Template format error: At least one Resources member must be defined.")
    return document


def _check_resource(name: str, resource: Any) -> None:
    if not isinstance(resource, dict) or "Type" not in resource:
        raise StackError(f"Template format error: [/Resources/{name}] has no Type.")
    if not _LOGICAL_ID.fullmatch(name):
        raise StackError(f"Template format error: Resource name {name} is non alphanumeric.")
    unknown = set(resource) - _ATTRIBUTES
    if unknown:
        listed = ", ".join(sorted(unknown))
        raise StackError(f"Invalid template resource property '{listed}' of {name}")


def _check_value(name: str, slot: Mapping[str, Any], value: str) -> None:
    allowed = slot.get("AllowedValues")
    if allowed is not None and value not in map(_text, allowed):
        listed = ", ".join(map(_text, allowed))
        raise StackError(f"Parameter '{name}' must be one of AllowedValues: [{listed}]")
    if slot.get("Type") == "Number":
        _check_number(name, slot, value)
        return
    least, most = int(slot.get("MinLength", 0)), int(slot.get("MaxLength", len(value)))
    pattern = slot.get("AllowedPattern")
    fits = pattern is None or re.fullmatch(pattern, value)
    if not fits or not least <= len(value) <= most:
        rule = slot.get("ConstraintDescription") or f"must match pattern {pattern}"
        raise StackError(f"Parameter {name} failed to satisfy constraint: {rule}")


def _check_number(name: str, slot: Mapping[str, Any], value: str) -> None:
    try:
        number = float(value)
    except ValueError:
        raise StackError(f"Parameter '{name}' must be a number.") from None
    if "MinValue" in slot and number < float(slot["MinValue"]):
        raise StackError(f"Parameter '{name}' must be a number not less than {slot['MinValue']}")
    if "MaxValue" in slot and number > float(slot["MaxValue"]):
        raise StackError(
            f"Parameter '{name}' must be a number not greater than {slot['MaxValue']}"
        )


def _depends_on(resource: Mapping[str, Any]) -> list[str]:
    named = resource.get("DependsOn") or []
    return [named] if isinstance(named, str) else named


def _references(part: Any) -> set[str]:
    """Return every name that a part of a template refers to, whatever the conditions are."""
    found: set[str] = set()
    if isinstance(part, list):
        for each in part:
            found |= _references(each)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key == "Ref":
                found.add(value)
            elif key == "Fn::GetAtt":
                found.add(value.split(".")[0] if isinstance(value, str) else value[0])
            elif key == "Fn::Sub":
                text, own = (value, {}) if isinstance(value, str) else value
                names_ = {n.split(".")[0] for bang, n in _VARIABLE.findall(text) if not bang}
                found |= (names_ - set(own)) | _references(own)
            else:
                found |= _references(value)
    return found


def _no_resources(name: str, attribute: str | None) -> Any:
    raise StackError(
        f"Template format error: Unresolved dependencies [{name}]. Cannot reference resources in "
        "the Conditions block of the template"
    )


def _text(value: Any) -> str:
    """Return a value as CloudFormation writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return "" if value is None else str(value)


#: What a template may ask of its stack, and of its surroundings.
_OWN = {"AWS::StackId", "AWS::StackName"}
_PSEUDO: dict[str, Any] = {
    "AWS::AccountId": names.ACCOUNT_ID,
    "AWS::NoValue": NO_VALUE,
    "AWS::NotificationARNs": [],
    "AWS::Partition": "aws",
    "AWS::Region": names.REGION,
    "AWS::URLSuffix": "amazonaws.com",
}

_FUNCTIONS: dict[str, Callable[[Template, Any, Look], Any]] = {
    "Ref": Template._ref,
    "Fn::Base64": Template._base64,
    "Fn::FindInMap": Template._find_in_map,
    "Fn::GetAtt": Template._get_att,
    "Fn::If": Template._if,
    "Fn::Join": Template._join,
    "Fn::Select": Template._select,
    "Fn::Split": Template._split,
    "Fn::Sub": Template._sub,
}
