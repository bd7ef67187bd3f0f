"""An export that stopped is gone on with: nothing finished is made twice, nothing doubtful kept."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import export.bundle
import export.export_plan
from export import ExportOptions, export_checkpoint
from export.finished_parts import FOLDER, JOURNAL
from export.graphs import GraphSource, graph_sources
from tests.engines.folders import contents
from trt_runtime.contract import PROMPT_EMBEDDING, SPEAKER_PROJECTION
from trt_runtime.errors import UserError
from trt_runtime.geometry import Geometry
from trt_runtime.staging import unfinished_folder

ROOT = Path(export.__file__).parents[1]
SMALL = ExportOptions(cache_length=256, max_steps=8, prefill_chunks=(16,))
#: Those that are traced in no time.
GRAPHS = (PROMPT_EMBEDDING, SPEAKER_PROJECTION)
COMPONENTS = 7
PARTS = COMPONENTS + len(GRAPHS)


def _few(geometry: Geometry) -> list[GraphSource]:
    return [source for source in graph_sources(geometry) if source.spec.name in GRAPHS]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "bundle"


class Made:
    """Counts the parts that are made, and stops before one where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: list[str] = []
        self.stop_after: int | None = None
        self.error: BaseException = KeyboardInterrupt()
        for name in ("write_component", "make_graph"):
            real = getattr(export.bundle, name)
            monkeypatch.setattr(export.bundle, name, self._counted(real))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, second: Any, *rest: Any) -> Any:
            if self.stop_after is not None and len(self.parts) >= self.stop_after:
                raise self.error
            made = real(first, second, *rest)
            # After: what is interrupted is not made.
            self.parts.append(first.spec.name if hasattr(first, "spec") else second[0].component)
            return made

        return call


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    monkeypatch.setattr(export.export_plan, "graph_sources", _few)
    return Made(monkeypatch)


def stop(made: Made, checkpoint: Path, place: Path, after: int, **options: Any) -> BaseException:
    """An export that stops after so many parts; returns what it raised."""
    made.stop_after = after
    made.parts.clear()
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        export_checkpoint(checkpoint, place, **{"options": SMALL, "check_values": False} | options)
    made.stop_after = None
    made.parts.clear()
    assert not place.exists()
    return caught.value


def go_on(checkpoint: Path, place: Path, **options: Any) -> list[str]:
    lines: list[str] = []
    export_checkpoint(
        checkpoint, place, progress=lines.append,
        **{"options": SMALL, "check_values": False} | options,
    )  # fmt: skip
    assert not unfinished_folder(place).exists()
    return lines


@pytest.mark.parametrize("after", [0, 1, 4, COMPONENTS, PARTS - 1])
def test_after_any_part_the_bundle_is_the_same_and_no_part_made_twice(
    made: Made, checkpoint: Path, place: Path, tmp_path: Path, after: int
) -> None:
    go_on(checkpoint, tmp_path / "at-once")
    assert len(made.parts) == PARTS
    error = stop(made, checkpoint, place, after)
    assert isinstance(error, KeyboardInterrupt)
    notes = getattr(error, "__notes__", [])
    assert unfinished_folder(place).exists() == bool(after) == bool(notes)
    if notes:
        assert f"kept: {after} of {PARTS} parts" in notes[0]
        assert str(unfinished_folder(place)) in notes[0]
    lines = go_on(checkpoint, place)
    assert len(made.parts) == PARTS - after
    assert contents(place) == contents(tmp_path / "at-once")
    assert bool(after) == any(f"{after} of {PARTS} parts" in line for line in lines)
    assert lines[-1].endswith("100 % done")


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (MemoryError(), True),
        (UserError("The weights are noise", do="train longer"), False),
    ],
)
def test_what_would_be_refused_again_is_not_kept(
    made: Made, checkpoint: Path, place: Path, error: Exception, kept: bool
) -> None:
    made.error = error
    raised = stop(made, checkpoint, place, COMPONENTS)
    assert unfinished_folder(place).exists() == kept
    assert bool(getattr(raised, "__notes__", [])) == kept
    go_on(checkpoint, place)
    assert len(made.parts) == (len(GRAPHS) if kept else PARTS)


def test_a_place_that_is_refused_at_last_costs_nothing(
    made: Made, checkpoint: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody put a file there meanwhile: all is made, and kept until that is moved away."""

    def refuse(*_: object) -> None:
        raise UserError("The place holds something else", do="move it away")

    with monkeypatch.context() as patch:
        patch.setattr(export.bundle, "replace_folder", refuse)
        with pytest.raises(UserError, match="something else"):
            export_checkpoint(checkpoint, place, options=SMALL, check_values=False)
    assert unfinished_folder(place).exists()
    made.parts.clear()
    go_on(checkpoint, place)
    assert made.parts == []


def test_several_stops(made: Made, checkpoint: Path, place: Path) -> None:
    for _ in range(PARTS - 1):
        stop(made, checkpoint, place, 1)
    go_on(checkpoint, place)
    assert len(made.parts) == 1


def test_starting_over_when_asked(made: Made, checkpoint: Path, place: Path) -> None:
    stop(made, checkpoint, place, COMPONENTS)
    go_on(checkpoint, place, fresh=True)
    assert len(made.parts) == PARTS


def test_not_resumable_leaves_nothing(made: Made, checkpoint: Path, place: Path) -> None:
    error = stop(made, checkpoint, place, COMPONENTS, resumable=False)
    assert not hasattr(error, "__notes__")
    assert [path.name for path in place.parent.iterdir()] == ["checkpoint"]


def _other_tensor(checkpoint: Path) -> dict[str, Any]:
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["stop_head.bias"][0] += 1
    save_file(tensors, checkpoint / "model.safetensors")
    return {}


def _other_config(checkpoint: Path) -> dict[str, Any]:
    config = json.loads((checkpoint / "config.json").read_text())
    config["llm_config"]["rope_theta"] = 10000.0
    (checkpoint / "config.json").write_text(json.dumps(config))
    return {}


def _unused_tensor(checkpoint: Path) -> dict[str, Any]:
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.lm_head.weight"] = tensors["model.lm_head.weight"] + np.float32(1)
    save_file(tensors, checkpoint / "model.safetensors")
    return {}


def _other_options(checkpoint: Path) -> dict[str, Any]:
    return {"options": ExportOptions(512, 8, (16,))}


def _values_compared(checkpoint: Path) -> dict[str, Any]:
    return {"check_values": True}


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (_other_tensor, PARTS),
        (_other_config, PARTS),
        (_unused_tensor, 1),
        (_other_options, len(GRAPHS)),
        (_values_compared, len(GRAPHS)),
    ],
)
def test_what_another_checkpoint_or_option_would_change_is_made_again(
    made: Made,
    checkpoint: Path,
    place: Path,
    tmp_path: Path,
    change: Callable[[Path], dict[str, Any]],
    again: int,
) -> None:
    stop(made, checkpoint, place, PARTS - 1)
    options = change(checkpoint)
    go_on(checkpoint, place, **options)
    assert len(made.parts) == again
    go_on(checkpoint, tmp_path / "at-once", **options)
    assert contents(place) == contents(tmp_path / "at-once")


@pytest.mark.parametrize("fact", ["torch", "ming-trt"])
def test_other_versions_start_over(
    made: Made, checkpoint: Path, place: Path, monkeypatch: pytest.MonkeyPatch, fact: str
) -> None:
    stop(made, checkpoint, place, COMPONENTS)
    real = export.export_plan.producer_facts()
    changed = real | {"versions": real["versions"] | {fact: "0"}}
    monkeypatch.setattr(export.export_plan, "producer_facts", lambda: changed)
    go_on(checkpoint, place)
    assert len(made.parts) == PARTS


def _flip(kept: Path) -> None:
    data = bytearray((kept / FOLDER / "talker.weights").read_bytes())
    data[100] ^= 1
    (kept / FOLDER / "talker.weights").write_bytes(data)


def _cut(kept: Path) -> None:
    path = kept / FOLDER / "talker.weights"
    path.write_bytes(path.read_bytes()[:-1])


def _delete(kept: Path) -> None:
    (kept / FOLDER / "talker.weights").unlink()


def _link(kept: Path) -> None:
    path = kept / FOLDER / "talker.weights"
    path.rename(kept / "elsewhere")
    path.symlink_to(kept / "elsewhere")


def _half_a_line(kept: Path) -> None:
    """The last line's part is made again."""
    (kept / JOURNAL).write_bytes((kept / JOURNAL).read_bytes()[:-10])


def _no_journal(kept: Path) -> None:
    (kept / JOURNAL).unlink()


def _nonsense(kept: Path) -> None:
    (kept / JOURNAL).write_bytes(b"\xff[\n" + (kept / JOURNAL).read_bytes())


def _leads_out(kept: Path) -> None:
    lines = (kept / JOURNAL).read_text().splitlines()
    shutil.copy(kept / FOLDER / "talker.weights", kept.parent / "talker.weights")
    lines = [line.replace('"talker.weights"', '"../../talker.weights"') for line in lines]
    (kept / JOURNAL).write_text("\n".join(lines) + "\n")


def _stray(kept: Path) -> None:
    (kept / FOLDER / "stray.onnx").write_bytes(b"x")
    (kept / FOLDER / "folder").mkdir()
    (kept / FOLDER / "folder" / "file").write_bytes(b"x")


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        (_flip, 1), (_cut, 1), (_delete, 1), (_link, 1), (_half_a_line, 1),
        (_no_journal, PARTS - 1), (_nonsense, PARTS - 1), (_leads_out, 1), (_stray, 0),
    ],
)  # fmt: skip
def test_what_is_not_as_the_journal_says_is_made_again(
    made: Made,
    checkpoint: Path,
    place: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    again: int,
) -> None:
    stop(made, checkpoint, place, PARTS - 1)
    damage(unfinished_folder(place))
    go_on(checkpoint, place)
    assert len(made.parts) == again + 1
    go_on(checkpoint, tmp_path / "at-once")
    assert contents(place) == contents(tmp_path / "at-once")


_CHILD = """
import os, sys, time
import export.bundle, export.export_plan
from export.graphs import graph_sources
names = sys.argv[3].split(",")
export.export_plan.graph_sources = lambda g: [s for s in graph_sources(g) if s.spec.name in names]
if sys.argv[4] == "in a file":
    def stay(*_):
        yield 0
        print("stuck", flush=True)
        time.sleep(60)
    real, calls = export.weights._write, []
    def write(file, checkpoint, parameter, entry):
        # Half a file of the talker's.
        if parameter.name == "talker.layers.1.qkv_weight":
            return stay()
        return real(file, checkpoint, parameter, entry)
    export.weights._write = write
else:
    def stay(*_, **__):
        print("stuck", flush=True)
        time.sleep(60)
    export.bundle.verify = stay
from export.__main__ import main
sys.exit(main([sys.argv[1], sys.argv[2], "--quiet", "--no-values", "--cache-length", "256",
               "--max-steps", "8", "--prefill-chunks", "16"]))
"""


def _child(checkpoint: Path, place: Path, where: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, checkpoint, place, ",".join(GRAPHS), where],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "stuck\n"
    return child


@pytest.mark.parametrize(("where", "finished"), [("in a file", 2), ("in a graph", COMPONENTS)])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_export_is_gone_on_with(
    made: Made, checkpoint: Path, place: Path, tmp_path: Path, where: str, finished: int,
    number: int,
) -> None:  # fmt: skip
    child = _child(checkpoint, place, where)
    try:
        with pytest.raises(UserError, match="is being written by another command"):
            export_checkpoint(checkpoint, place, options=SMALL)
    finally:
        child.send_signal(number)
        _, errors = child.communicate(timeout=30)
    assert not place.exists()
    if number != signal.SIGKILL:
        assert child.returncode == 128 + number
        assert errors.startswith("interrupted; no bundle was written\n")
        assert f"kept: {finished} of {PARTS} parts" in errors
    go_on(checkpoint, place)
    assert len(made.parts) == PARTS - finished
    assert Counter(made.parts).most_common(1)[0][1] == 1
    go_on(checkpoint, tmp_path / "at-once")
    assert contents(place) == contents(tmp_path / "at-once")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "bundle", "at-once"}


@pytest.mark.parametrize("name", ["bundle", "journal.jsonl", "journal.jsonl.new"])
def test_what_a_link_leads_to_is_left_alone(
    made: Made, checkpoint: Path, place: Path, tmp_path: Path, name: str
) -> None:
    """Somebody may have moved the large folder to another disk: it is made again, not emptied."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("precious")
    file = precious / "notes.txt"
    file.write_text("precious too")
    stop(made, checkpoint, place, 4)
    inside = unfinished_folder(place) / name
    if inside.is_dir():
        shutil.rmtree(inside)
    else:
        inside.unlink(missing_ok=True)
    inside.symlink_to(precious if name == "bundle" else file)
    go_on(checkpoint, place)
    assert (precious / "thesis.txt").read_text() == "precious"
    assert file.read_text() == "precious too"
    assert sorted(path.name for path in precious.iterdir()) == ["notes.txt", "thesis.txt"]
    assert place.is_dir()
    assert not place.is_symlink()


def test_a_lock_that_is_a_link_is_refused(checkpoint: Path, place: Path, tmp_path: Path) -> None:
    unfinished_folder(place).mkdir(mode=0o700)
    (unfinished_folder(place) / ".lock").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no lock of ours[\s\S]*delete"):
        export_checkpoint(checkpoint, place, options=SMALL, check_values=False)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("change", [{"name": ["a"]}, {"file": 5}, {"noted": None}, {"bytes": "1"}])
def test_lines_of_other_types_are_not_believed(
    made: Made, checkpoint: Path, place: Path, change: dict[str, Any]
) -> None:
    stop(made, checkpoint, place, 4)
    journal = unfinished_folder(place) / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[1] |= change
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    go_on(checkpoint, place)
    assert len(made.parts) == PARTS - 1
