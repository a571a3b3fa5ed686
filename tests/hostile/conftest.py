"""Each hostile test has a witness of its own, so that no test sees another's ledgers."""

import pytest


@pytest.fixture(autouse=True)
def own_witness(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SUTURE_WITNESS", str(tmp_path_factory.mktemp("witness")))
