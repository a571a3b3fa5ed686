"""The cache of compiled kernels is used while no kernel source changes, and not a moment longer."""

from __future__ import annotations

import importlib.util

from suture.models import kernels as module
from suture.training.dpsgd import run

SOURCE = """
def double(x):
    return 2 * x
"""


def test_a_change_in_any_kernel_source_means_compiling_again(tmp_path, monkeypatch):
    path = tmp_path / "example.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("example", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    def loaded_from_cache() -> bool:
        function = module.compiled(example.double)
        assert function(21) == 42
        return sum(function.stats.cache_hits.values()) == 1

    assert [loaded_from_cache(), loaded_from_cache()] == [False, True]
    monkeypatch.setattr(module, "sources_digest", lambda: "other sources")
    assert [loaded_from_cache(), loaded_from_cache()] == [False, True]


def test_the_training_kernel_is_keyed_by_all_sources():
    assert run._cache._cache_file._source_stamp == module.sources_digest()
