from __future__ import annotations

from dataclasses import replace

import pytest

from engines.targets import TARGETS, _imported, find_target
from trt_runtime.errors import UserError


def test_cpu_leaves_out_the_unrolled_tail_only():
    cpu = find_target("cpu")
    assert not cpu.takes("tail")
    assert cpu.takes("talker_1")
    assert cpu.takes("flow_step")
    assert cpu.precisions == ("float32",)


def test_every_row_names_a_builder_that_exists():
    for name, target in TARGETS.items():
        assert target.name == name
        for row in (target.row, *target.others.values()):
            assert callable(_imported(row.build))
        assert callable(_imported(target.machine))


def test_unknown_target_lists_those_that_exist():
    with pytest.raises(UserError, match=r"no target 'gpu'(?s:.*)Expected: cpu or cuda"):
        find_target("gpu")


def test_missing_package_is_named_with_the_command_that_installs_it():
    target = replace(find_target("cpu"), needs={"no_such_package": "pip install no-such"})
    with pytest.raises(UserError, match=r"needs the package no_such_package(?s:.*)no-such"):
        target.load_builders()
