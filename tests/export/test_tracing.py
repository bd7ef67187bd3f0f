"""Tracing leaves other libraries as they were, and knows every graph of the contract by name."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest

import export.graphs
from export.families import family_of
from export.geometry import ExportOptions, geometry_of
from export.graph_weights import weight_components
from export.graphs import TRACED_SLOTS, example_inputs, graph_sources
from export.tracing import _quiet
from trt_runtime.contract import (
    LANGUAGE_HEAD,
    PROMPT_EMBEDDING,
    SPEAKER_PROJECTION,
    GraphSpec,
    graph_specs,
)
from trt_runtime.geometry import Geometry

LEVELS = {"torch.onnx": logging.DEBUG, "onnx_ir": logging.NOTSET, "onnxscript": logging.INFO}


@pytest.fixture
def geometry(config: dict[str, Any]) -> Geometry:
    return geometry_of(family_of(config).sizes(config), ExportOptions(256, 8, (16,)))


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_the_loggers_of_others_get_their_levels_back(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    for name, level in LEVELS.items():
        monkeypatch.setattr(logging.getLogger(name), "level", level)
    filters = list(warnings.filters)

    def use() -> None:
        with _quiet():
            assert {logging.getLogger(name).level for name in LEVELS} == {logging.ERROR}
            if error is not None:
                raise error

    if error is None:
        use()
    else:
        with pytest.raises(error):
            use()
    assert {name: logging.getLogger(name).level for name in LEVELS} == LEVELS
    assert warnings.filters == filters


def test_every_graph_has_its_module_and_weights(geometry: Geometry, config: dict[str, Any]) -> None:
    family = family_of(config)
    components = set(family.component_names(family.sizes(config)))
    sources = {source.spec.name: source for source in graph_sources(geometry)}
    assert list(sources) == list(graph_specs(geometry))
    assert sources["talker_1"].make is sources["talker_16"].make is export.graphs.TalkerGraph
    for source in sources.values():
        # Tied embeddings leave the language-model head no component of its own.
        assert set(source.components) <= components | {"language_head"}
        assert source.components == weight_components(source.spec)
    used = {name for source in sources.values() for name in source.components}
    assert used == components | {"language_head"}


def test_a_graph_that_no_row_names_is_no_talker(
    geometry: Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = GraphSpec("vocoder", "vocoder", (), ())
    monkeypatch.setattr(export.graphs, "graph_specs", lambda _: {"vocoder": unknown})
    with pytest.raises(KeyError, match="vocoder"):
        graph_sources(geometry)


def test_graphs_with_counts_or_slots_are_tried_at_a_first_call_too(geometry: Geometry) -> None:
    for name, spec in graph_specs(geometry).items():
        points = [
            {t.name: v for t, v in zip(spec.inputs, inputs, strict=True)}
            for inputs in example_inputs(spec, geometry)
        ]
        once = name in (PROMPT_EMBEDDING, SPEAKER_PROJECTION, LANGUAGE_HEAD)
        assert len(points) == (1 if once else 2)
        for point, slots in zip(points, (TRACED_SLOTS, 1), strict=False):
            for tensor in spec.inputs:
                assert tuple(point[tensor.name].shape) == tensor.sized(slots).shape
                assert str(point[tensor.name].dtype) == f"torch.{tensor.dtype}"
        if name == "talker_1":
            assert [p["position"].tolist() for p in points] == [[16, 17], [0]]
        elif name.startswith("talker_"):
            assert [p["position"].tolist() for p in points] == [[16], [0]]
        if name == "audio_decoder":
            assert [bool(p["is_last"]) for p in points] == [False, True]
            assert [int(p["latents_before"]) for p in points] == [4, 0]
            assert [int(p["valid"]) for p in points] == [4, 1]
