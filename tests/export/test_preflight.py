"""The preflight says as much as possible, whatever is wrong, and needs no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import export.preflight
from export.__main__ import main
from export.assumptions import compare_assumptions
from export.geometry import ExportOptions, geometry_of
from export.graphs import graph_sources
from export.preflight import check_checkpoint, format_report
from export.synthetic import write_random_checkpoint
from tests.goldens import OMNI_TTS, needs_goldens

ROOT = Path(__file__).resolve().parents[2]
CANNOT = "This checkpoint cannot be exported: "


def test_a_whole_checkpoint_can_be_exported(folder: Path) -> None:
    report = check_checkpoint(folder)
    text = format_report(report)
    assert report.ok
    assert report.problems == []
    assert text.splitlines()[-1] == "This checkpoint can be exported."
    assert "ming-omni-tts-dense" in text
    for component in ("prompt_embedding", "talker", "flow", "flow_advance", "audio_decoder"):
        assert component in text
    assert "16 wide, 2 layers, 4/2 heads of 4" in text
    assert "the head is the table of embeddings (tie_word_embeddings)" in text
    assert "campplus.onnx  there" in text
    assert report.needs is not None
    assert "basis" in text


def test_parameters_are_counted_once(folder: Path) -> None:
    report = check_checkpoint(folder)
    groups = (*report.components, *report.unused)
    assert sum(group.tensors for group in groups) == len(report.tensors)
    assert sum(group.bytes for group in groups) == sum(t.bytes for t in report.tensors.values())
    assert [group.name for group in report.dtypes] == ["float32", "bfloat16"] or [
        group.name for group in report.dtypes
    ] == ["bfloat16", "float32"]


@needs_goldens
def test_the_golden_checkpoint() -> None:
    report = check_checkpoint(OMNI_TTS / "tiny-dense")
    assert report.ok
    assert report.unknown_keys == ()
    assert report.has_speaker_encoder
    assert report.token_ids["<audioPatch>"] == 915
    assert "CONTRADICTED: assumed 151705, found 915" in format_report(report)


@needs_goldens
def test_a_sharded_mixture_of_experts() -> None:
    report = check_checkpoint(OMNI_TTS / "tiny-moe-sharded")
    assert report.ok, format_report(report)
    assert "359 tensors" in format_report(report)


def test_a_family_that_is_not_supported(tmp_path: Path) -> None:
    config = {"model_type": "lingv3_tts", "llm_config": {"model_type": "bailing_hybrid"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = format_report(check_checkpoint(tmp_path))
    assert "looks like Ming-3.0-tts-tiny" in text
    assert text.splitlines()[-1].startswith(CANNOT)


def test_no_such_folder(tmp_path: Path) -> None:
    report = check_checkpoint(tmp_path / "absent")
    assert not report.ok
    assert format_report(report).splitlines()[-1].startswith(CANNOT + "No such folder")


def test_differences_are_named(folder: Path, change_tensors: Callable[..., None]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        del tensors["spk_head.bias"]
        tensors["extra"] = np.zeros(2, np.float32)
        tensors["stop_head.bias"] = np.zeros(3, np.float32)

    change_tensors(edit)
    report = check_checkpoint(folder)
    text = format_report(report)
    assert not report.ok
    assert "missing: spk_head.bias" in text
    assert "unexpected: extra" in text
    assert "misshapen: stop_head.bias (expected [2], found [3])" in text
    assert "(and 2 more, see Problems)" in text.splitlines()[-1]


def test_several_things_wrong_are_all_reported(
    folder: Path, config: dict[str, Any], write_config: Callable[[Any], None]
) -> None:
    config["ditar_config"]["depth"] = 0
    config["llm_config"]["novelty"] = 1
    write_config(config)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    (folder / "tokenizer.json").write_text("{}")
    report = check_checkpoint(folder)
    text = format_report(report)
    assert len(report.problems) == 3
    for part in ("ditar_config.depth", "is truncated", "tokenizer.json cannot be used"):
        assert part in text
    assert report.unknown_keys == ("llm_config.novelty",)
    assert "llm_config.novelty" in text


def test_a_damaged_shard_does_not_hide_the_others(tmp_path: Path, config: dict[str, Any]) -> None:
    write_random_checkpoint(tmp_path, config, shard_bytes=30_000)
    shards = sorted(tmp_path.glob("*.safetensors"))
    for shard in shards[:2]:
        shard.write_bytes(shard.read_bytes()[:-1])
    report = check_checkpoint(tmp_path)
    assert len(report.problems) == 2
    assert all("is truncated" in problem for problem in report.problems)
    assert report.tensors


def test_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    report = check_checkpoint(folder)
    assert "are pickled" in report.problems[0]
    assert report.has_tokenizer


def test_missing_control_tokens(folder: Path) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] != "<audioPatch>"]
    del data["model"]["vocab"]["<audioPatch>"]
    path.write_text(json.dumps(data), encoding="utf-8")
    report = check_checkpoint(folder)
    assert report.problems == [
        "The tokenizer lacks control tokens of the prompt grammar: <audioPatch>"
    ]
    assert "<audioPatch>       missing" in format_report(report)


def test_control_tokens_beyond_the_embedding_table(
    folder: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    config["llm_config"]["vocab_size"] = 296
    write_random_checkpoint(tmp_path / "b", config, tokenizer=False)
    shutil.copy(folder / "tokenizer.json", tmp_path / "b")
    report = check_checkpoint(tmp_path / "b")
    assert any("has 296 rows, too few for: <audio> (296)" in p for p in report.problems)


def test_a_checkpoint_without_unused_tensors_is_fine(
    folder: Path, change_tensors: Callable[..., None]
) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if name.endswith(".embed_tokens.weight")]:
            if name.startswith("audio."):
                del tensors[name]
        del tensors["model.lm_head.weight"]

    change_tensors(edit)
    report = check_checkpoint(folder)
    assert report.ok
    assert any("are not stored either" in note for note in report.notes)


def test_a_checkpoint_without_a_speaker_encoder_is_fine_and_said_so(folder: Path) -> None:
    (folder / "campplus.onnx").unlink()
    report = check_checkpoint(folder)
    assert report.ok
    assert any("references give no speaker embedding" in note for note in report.notes)
    (folder / "campplus.onnx").touch()
    assert any("an empty file" in problem for problem in check_checkpoint(folder).problems)
    (folder / "campplus.onnx").unlink()
    (folder / "campplus.onnx").mkdir()
    assert any("no plain file" in problem for problem in check_checkpoint(folder).problems)


def test_the_full_size_config_is_as_assumed(folder: Path) -> None:
    """The benchmarks' config rests on the same assumptions, but for what it could not know."""
    config = json.loads((ROOT / "benchmarks" / "configs" / "ming-omni-tts-0.5b.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    verdicts = {a.subject: a.verdict for a in check_checkpoint(folder).assumptions}
    for subject in ("talker", "DiT width", "latents of history", "sample rate", "audio decoder"):
        assert verdicts[subject] == "as assumed"
    # Other projects require windows that no published config shows.
    assert verdicts["audio decoder sliding windows"].startswith("CONTRADICTED")
    assert verdicts["DiT tensors"] == "CONTRADICTED: assumed 124, found 40"


def test_contradictions_do_not_prevent_the_export(folder: Path) -> None:
    report = check_checkpoint(folder)
    assert any(a.verdict.startswith("CONTRADICTED") for a in report.assumptions)
    assert report.ok


def test_assumptions_survive_a_damaged_config(folder: Path) -> None:
    from export.assumptions import Finding

    for config in ({}, {"audio_tokenizer_config": 3}, {"llm_config": []}):
        rows = compare_assumptions(Finding(config, None, {}, {}))
        assert any(row.verdict.startswith("not known") for row in rows)


def test_needs_neither_torch_nor_the_tensors(folder: Path) -> None:
    code = (
        "import sys; from export.preflight import check_checkpoint, format_report\n"
        f"print(format_report(check_checkpoint({str(folder)!r})))\n"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("This checkpoint can be exported.")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"{}", b"[1, 2", b"\xff\xfe\xfd"])
def test_never_raises(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    report = check_checkpoint(folder)
    assert not report.ok
    assert format_report(report).splitlines()[-1].startswith(CANNOT)


def _free(monkeypatch: pytest.MonkeyPatch, *, memory: int | None, disk: int) -> None:
    monkeypatch.setattr(export.preflight, "free_memory", lambda: memory)
    usage = SimpleNamespace(free=disk)
    monkeypatch.setattr(export.preflight.shutil, "disk_usage", lambda _: usage)


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        (24_000_000_000, "24.0 GB free: enough\n"),
        (800_050_000, "0.8 GB free: enough, but values of the largest graphs are compared where"),
        (100_000_000, "0.1 GB free: NOT enough\n"),
    ],
)
def test_the_needs_are_compared_with_this_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, memory: int, said: str
) -> None:
    _free(monkeypatch, memory=memory, disk=51_000_000_000)
    report = check_checkpoint(folder)
    text = format_report(report)
    assert said in text
    assert "51.00 GB free in this folder: enough\n" in text
    # Memory may be free again a minute later.
    assert report.ok


def test_memory_that_the_system_does_not_tell(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _free(monkeypatch, memory=None, disk=51_000_000_000)
    text = format_report(check_checkpoint(folder))
    assert "GB with every graph's values compared" in text
    assert text.count("GB free") == 1


def test_a_full_disk_counts_where_the_bundle_would_lie_on_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _free(monkeypatch, memory=None, disk=1_000_000)
    somewhere = check_checkpoint(folder)
    assert "0.00 GB free in this folder: NOT enough" in format_report(somewhere)
    assert somewhere.ok
    there = check_checkpoint(folder, tmp_path / "not" / "yet" / "bundle")
    text = format_report(there)
    assert f"free for {tmp_path / 'not' / 'yet' / 'bundle'}: NOT enough" in text
    assert text.splitlines()[-1].startswith(f"{CANNOT}The disk of {tmp_path}")


def test_the_needs_follow_the_options(folder: Path) -> None:
    few, many = (
        check_checkpoint(folder, options=ExportOptions(prefill_chunks=chunks)).needs
        for chunks in ((16,), (16, 32, 64, 128))
    )
    assert few is not None
    assert many is not None
    assert many.seconds > few.seconds


def test_the_options_of_the_command_line_reach_the_check(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", str(folder), "--prefill-chunks", "16,24"]) == 2
    assert "prefill_chunks cannot be used" in capsys.readouterr().err
    assert main(["--check", str(folder), "--prefill-chunks", "16"]) == 0


def test_the_needs_count_every_graph_of_the_contract(folder: Path) -> None:
    report = check_checkpoint(folder)
    assert report.family is not None
    assert report.sizes is not None
    assert report.needs is not None
    geometry = geometry_of(report.sizes, ExportOptions())
    counts = {group.name: group.parameters for group in report.components}
    graphs = [
        sum(counts.get(name, 0) for name in source.components) for source in graph_sources(geometry)
    ]
    assert report.needs.free_memory == 28 * max(graphs)


def test_names_of_a_stranger_reach_no_terminal_as_they_are(
    folder: Path,
    config: dict[str, Any],
    write_config: Callable[[Any], None],
    change_tensors: Callable[..., None],
) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["a\x1b[2Jtensor\nThis checkpoint can be exported."] = np.zeros(2, np.float32)

    change_tensors(edit)
    config["a\x1b[2Jkey"] = 1
    config["ditar_config"]["qk_norm"] = "\x1b[2J"
    write_config(config)
    report = check_checkpoint(folder)
    for text in (format_report(report), *report.problems):
        assert "\x1b" not in text
    del config["ditar_config"]["qk_norm"]
    write_config(config)
    text = format_report(check_checkpoint(folder))
    assert r"a\x1b[2Jtensor\nThis checkpoint can be exported." in text
    assert r"a\x1b[2Jkey" in text
    assert not any(line.strip() == "This checkpoint can be exported." for line in text.splitlines())


def test_fewer_trained_positions_than_the_bundle_holds(
    folder: Path, config: dict[str, Any], write_config: Callable[[Any], None]
) -> None:
    config["llm_config"]["max_position_embeddings"] = 512
    write_config(config)
    report = check_checkpoint(folder)
    assert report.ok
    assert any("512 positions" in note and "--cache-length" in note for note in report.notes)
