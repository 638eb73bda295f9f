"""Label and field selectors of the Kubernetes API."""

from __future__ import annotations

import pytest

from tests.emulators.kubernetes import selectors
from tests.emulators.kubernetes.errors import BadRequestError
from tests.emulators.kubernetes.kinds import EVENT, JOB, POD


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("app=a", "a"),
        ("app==a", "a"),
        ("app!=a", "bc"),
        ("app in (a, b)", "ab"),
        ("app notin (a,b)", "c"),
        ("app", "ab"),
        ("!app", "c"),
        ("farcall/run", "b"),
        ("app in (a,b),farcall/run=x.y_z", "b"),
        ("app=", ""),
    ],
)
def test_labels_select_objects(text, selected):
    objects = {"a": {"app": "a"}, "b": {"app": "b", "farcall/run": "x.y_z"}, "c": None}
    selects = selectors.labels(text)
    found = [n for n, has in objects.items() if selects({"metadata": {"labels": has}})]
    assert "".join(found) == selected


def test_empty_selector_selects_everything():
    assert selectors.labels("")({"metadata": {}})
    assert selectors.fields(POD, "")({"metadata": {}})


@pytest.mark.parametrize("text", ["a b", "a=b=c", "a in b", "a>1", "a in (b"])
def test_invalid_label_selector_is_rejected(text):
    with pytest.raises(BadRequestError, match="unable to parse requirement"):
        selectors.labels(text)


@pytest.mark.parametrize(
    ("kind", "text", "selected"),
    [
        (POD, "metadata.name=a", True),
        (POD, "metadata.name=b", False),
        (POD, "status.phase=Failed", True),
        (POD, "status.phase!=Failed", False),
        (POD, "status.phase==Failed,metadata.namespace=default", True),
        (POD, "spec.nodeName=", True),
        (EVENT, "involvedObject.name=x,reason=Failed", True),
    ],
)
def test_fields_select_objects(kind, text, selected):
    document = {
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {},
        "status": {"phase": "Failed"},
        "involvedObject": {"name": "x"},
        "reason": "Failed",
    }
    assert selectors.fields(kind, text)(document) is selected


def test_unsupported_field_selector_is_rejected():
    with pytest.raises(BadRequestError, match='"spec.parallelism" is not a known field selector'):
        selectors.fields(JOB, "spec.parallelism=1")
    with pytest.raises(BadRequestError, match="invalid selector"):
        selectors.fields(JOB, "name")
