"""`engines.compare`: what is equal passes, what is not does not, and the report says which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import build_engines, compare
from engines.comparison import drift
from engines.comparison.budgets import BUDGETS
from engines.comparison.inputs import seeded_inputs
from engines.comparison.metrics import METRICS, relative_error
from engines.comparison.probes import PROBES, walk
from engines.comparison.report import Report
from engines.comparison.sides import LOWER, Side, check_same_model, open_sides
from engines.comparison.stored_tensors import Numbers, side_by_side
from engines.comparison.torch_reference import TorchBackend
from engines.precision import FLOAT32
from export import ExportOptions
from export.geometry import geometry_of
from tests.conftest import Folders
from tests.engines.comparing import status_of
from tests.engines.plants import copied, parameters, plant, relist
from trt_runtime.contract import FLOW_STEP
from trt_runtime.folder import EMBEDDED
from trt_runtime.manifest import MANIFEST, Manifest, read_manifest


def quick(a: Path, b: Path, **options: Any) -> Report:
    return compare(a, b, steps=2, threads=1, **options)


def row(report: Report, name: str) -> float:
    return next(row.value for row in report.rows if row.name == name)


def test_a_bundle_is_itself(folders: Folders) -> None:
    report = quick(folders.bundle, folders.bundle)
    assert report.passed
    errors = [r.value for r in report.rows if r.metric != "snr"]
    assert errors
    assert not any(errors)
    assert not report.components


def test_cpu_engines_are_their_bundle(folders: Folders) -> None:
    report = compare(folders.bundle, folders.engines, threads=1)
    assert report.passed, list(report.lines())
    assert report.drift is not None
    assert len(report.drift.latents) == 50
    assert report.drift.agreement == 1.0
    assert "weights" in report.skipped


def test_a_trained_loop_stays_together(demo_engines: Path) -> None:
    """The embedded voice, which multiplies rounding as no random model does."""
    report = compare(EMBEDDED, demo_engines, threads=1)
    assert report.passed, list(report.lines())
    # The same steps for prompts of random tokens are no speech, and nothing to judge by.
    assert row(report, "loop.latents") > 1e-6


def test_a_bundle_and_its_engines_are_their_checkpoint(folders: Folders) -> None:
    for made in (folders.bundle, folders.engines):
        report = quick(folders.checkpoint, made)
        assert report.passed, list(report.lines())
        # Every component, and the stored numbers of a bundle.
        measured = {r.measured for r in report.rows}
        assert measured >= set(PROBES) - {"tail"}
        assert ("weights" in measured) == (made == folders.bundle)


def test_rounding_is_below_its_budget_and_not_far(folders: Folders) -> None:
    """Ten to a hundred times, of models this small."""
    report = quick(folders.checkpoint, folders.engines)
    for found in report.rows:
        if found.metric in ("relative", "norm", "absolute") and found.limit:
            assert found.value <= found.limit / 10, found.name
    assert max(r.value for r in report.rows if r.name == "talker_prefill") > 2e-5 / 100


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_numbers_that_are_not_finite_are_within_no_budget(metric: Any, broken: float) -> None:
    a = np.ones((2, 4000))
    b = a.copy()
    b[0, 0] = broken
    assert not metric.within(metric(b, a, 16_000), 0.0 if metric.higher_is_better else 1e30)
    assert metric(a[:1], a, 16_000) == metric.worst()


def test_budgets_may_be_replaced(dense: Folders) -> None:
    report = quick(dense.bundle, dense.engines, budgets={"talker_decode": 1e-9})
    assert [r.name for r in report.exceeded] == ["talker_decode"]
    assert report.components == ["talker"]


def test_the_same_seed_gives_the_same_report(dense: Folders) -> None:
    def told(seed: int) -> dict[str, Any]:
        report = json.loads(quick(dense.bundle, dense.engines, seed=seed).to_json())
        del report["seconds"]
        return dict(report)

    assert told(3) == told(3)
    assert told(3)["drift"] != told(4)["drift"]


def test_json_and_plot_are_written(dense: Folders, tmp_path: Path) -> None:
    words = (dense.bundle, dense.engines, "--steps", "3")
    files = ("--json", tmp_path / "report.json", "--plot", tmp_path / "drift.png")
    assert status_of(*words, *files) == 0
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["passed"]
    assert len(report["drift"]["latents"]) == 3
    assert (tmp_path / "drift.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2


def test_recorded_inputs_are_used(dense: Folders, tmp_path: Path) -> None:
    geometry = read_manifest(dense.bundle).geometry
    drawn = seeded_inputs(geometry, geometry, 5)
    path = tmp_path / "inputs.npz"
    np.savez(path, token_ids=drawn.token_ids[:2], initial_noise=drawn.initial_noise[:2, :2],
             diffusion_noise=drawn.diffusion_noise[:2, :2])  # fmt: skip
    assert quick(dense.bundle, dense.engines, inputs=path).passed


def test_an_unrolled_tail_is_compared_with_the_loop(dense: Folders, tmp_path: Path) -> None:
    """As engines for a GPU have it: without the graph of one solver step."""
    unrolled = copied(dense.bundle, tmp_path / "unrolled")
    manifest = read_manifest(unrolled)
    graphs = {name: entry for name, entry in manifest.graphs.items() if name != FLOW_STEP}
    (unrolled / MANIFEST).write_text(replace(manifest, graphs=graphs).to_json(), encoding="utf-8")
    report = quick(dense.checkpoint, unrolled)
    assert report.passed, list(report.lines())
    assert "tail" in {r.measured for r in report.rows}


def test_a_mistake_shows_in_the_decision_to_stop(dense: Folders, tmp_path: Path) -> None:
    wrong = copied(dense.bundle, tmp_path / "wrong")
    stored = parameters(wrong)["stop_head.bias"]
    assert plant(wrong, stored, lambda values: values + np.array([-3.0, 3.0], np.float32))
    report = compare(dense.bundle, wrong, steps=6, threads=1)
    assert report.drift is not None
    assert report.drift.first_difference == 1
    assert report.drift.agreement < 1
    assert {"loop.stops", "stop_head"} <= {r.name for r in report.exceeded}
    # Only what decides is wrong: what is said stays the same.
    assert row(report, "loop.latents") == 0.0


def test_numbers_that_are_not_finite_are_outside_and_not_an_error(
    dense: Folders, tmp_path: Path
) -> None:
    wrong = copied(dense.bundle, tmp_path / "wrong")
    for name in ("flow.final_bias", "audio_encoder.latent_bias"):
        assert plant(wrong, parameters(wrong)[name], lambda values: values * np.nan)
    files = ("--json", tmp_path / "report.json", "--plot", tmp_path / "drift.png")
    assert status_of(dense.bundle, wrong, "--steps", "2", "--isolate", *files) == 1
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert {"flow", "audio_encoder"} <= set(report["components"])
    assert "NaN" in report["skipped"]["audio_encoder"]
    read = {n for f in report["isolated"] for node in f["b"] for n in node["initializers"]}
    assert {"flow.final_bias", "audio_encoder.latent_bias"} <= read


def test_another_tokenizer_is_found(dense: Folders, tmp_path: Path) -> None:
    wrong = copied(dense.engines, tmp_path / "wrong")
    with (wrong / "tokenizer.json").open("a", encoding="utf-8") as file:
        file.write(" ")
    relist(wrong)
    report = quick(dense.engines, wrong)
    assert [r.name for r in report.exceeded] == ["files"]
    assert report.components == ["tokenizer"]
    assert "tokenizer.json" in "\n".join(report.lines())


def test_tensors_are_compared_however_they_are_cut() -> None:
    values = np.arange(10, dtype=np.float32)
    other = values.copy()
    other[7] = -7

    def cut(array: np.ndarray, *places: int) -> Numbers:
        return Numbers("float32", (10,), lambda: iter(np.split(array, places)))

    a, b = cut(values, 3, 3, 8), cut(other, 5)
    x, y = (np.concatenate(parts) for parts in zip(*side_by_side(a, b), strict=True))
    np.testing.assert_array_equal(x, values)
    np.testing.assert_array_equal(y, other)
    assert a.digest() == cut(values, 1).digest() != b.digest()


def test_rows_of_a_batch_that_differ_are_found(
    dense: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of some runtime's kernels, whose result depends on the row (TensorRT issue 4813)."""
    plain = drift.run_loop

    def with_a_bad_row(side: Side, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = plain(side, feed)
        if side.name == "B":
            found["rows"] = found["rows"].copy()
            found["rows"][:, 2] *= 1 + 1e-6
        return found

    monkeypatch.setattr("engines.comparison.compare.run_loop", with_a_bad_row)
    report = quick(dense.bundle, dense.bundle)
    assert [r.name for r in report.exceeded] == ["loop.rows"]


def test_folders_of_other_capacity_are_compared(dense: Folders) -> None:
    """Sizes of prefill calls and lengths of caches say nothing of the model."""
    a, plain = open_sides(dense.bundle, dense.checkpoint, threads=1)
    assert plain.checkpoint is not None
    options = ExportOptions(cache_length=256, max_steps=40, prefill_chunks=(32,))
    small = geometry_of(plain.checkpoint.sizes, options)
    check_same_model((a.path, plain.path), (a.geometry, small))
    b = replace(plain, geometry=small, backend=TorchBackend(plain.checkpoint, small))
    feed = walk(a, seeded_inputs(a.geometry, small, 0))
    for probe in PROBES.values():
        if not probe.missing((a, b)):
            wanted, found = probe.run(a, feed), probe.run(b, feed)
            for name, values in wanted.items():
                assert relative_error(found[name], values) <= 2e-5, (probe.name, name)


def side(manifest: Manifest) -> Side:
    return Side("B", Path(), "engines", "dense", manifest.geometry, None, manifest)  # type: ignore[arg-type]


def test_the_precision_of_a_component_chooses_its_budget(dense: Folders, tmp_path: Path) -> None:
    built = build_engines(dense.bundle, tmp_path / "cuda", target="cuda")
    manifest = read_manifest(built)
    found = side(manifest)
    assert found.precision("talker") == LOWER
    # Stored narrow and only looked up.
    assert manifest.precision["prompt_embedding"] == "bfloat16"
    assert found.precision("prompt_embedding") == FLOAT32
    assert found.precision("flow") == FLOAT32
    mixed = replace(manifest, precision={**manifest.precision, "tail": "mixed-fp16"})
    assert side(mixed).precision("flow") == LOWER
    assert BUDGETS["flow.patch_error"].limit(LOWER) == 0.01
    assert BUDGETS["audio_decoder.snr"].limit(LOWER) == 40.0


def test_sides_are_what_was_given(moe: Folders) -> None:
    a, b = open_sides(moe.checkpoint, moe.engines, threads=1)
    assert (a.kind, b.kind, b.target) == ("checkpoint", "engines", "cpu")
    assert a.geometry == b.geometry
    assert a.family == b.family
