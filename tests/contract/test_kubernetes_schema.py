"""The local Kubernetes emulator's table of fields."""

import pytest


def test_table_matches_official_schemas():
    pytest.importorskip("kubernetes_validate", reason="needs the official schemas")
    from tests.contract.make_kubernetes_schema import TABLE, table, text_of

    assert TABLE.read_text() == text_of(table())
