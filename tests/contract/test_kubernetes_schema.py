"""The local Kubernetes emulator's table of fields is what the official schemas say."""

from __future__ import annotations

import pytest


def test_the_table_is_of_the_official_schemas():
    pytest.importorskip("kubernetes_validate", reason="needs the official schemas")
    from tests.contract.make_kubernetes_schema import TABLE, table, text_of

    assert TABLE.read_text() == text_of(table())
