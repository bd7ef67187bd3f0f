"""`python -m export` with every bad input: exit status 2, what was wrong, nothing left behind."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import export
import export.weights
from export.__main__ import main

ROOT = Path(export.__file__).parents[1]


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.fixture
def refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Runs the command, which must fail, and returns what it prints as an error."""

    def run(checkpoint: Path = folder, bundle: Path | None = None, *options: str) -> str:
        place = tmp_path / "new" / "parent" / "bundle" if bundle is None else bundle
        before = tree(tmp_path)
        assert main([str(checkpoint), str(place), *options]) == 2
        assert tree(tmp_path) == before
        printed = capsys.readouterr()
        assert printed.err.startswith("error: ")
        assert "What to do: " in printed.err
        assert "Traceback" not in printed.err
        return printed.err

    return run


def test_no_such_folder(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "No such folder" in refused(tmp_path / "absent")


def test_a_hub_id_without_download(refused: Callable[..., str]) -> None:
    assert "add --download" in refused(Path("owner/model"))


def test_a_file(refused: Callable[..., str], folder: Path) -> None:
    assert "is not a folder" in refused(folder / "config.json")


def test_an_unknown_architecture(
    refused: Callable[..., str], config: dict[str, Any], write_config: Callable[[Any], None]
) -> None:
    write_config(config | {"model_type": "llama"})
    message = refused()
    assert "this version cannot export" in message
    assert "an unknown architecture" in message


def _delete(tensors: dict[str, np.ndarray]) -> None:
    del tensors["spk_head.bias"]


def _add(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.\x1b[2Jvisual"] = np.zeros(2, np.float32)


def _reshape(tensors: dict[str, np.ndarray]) -> None:
    tensors["stop_head.bias"] = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_delete, "1 missing: spk_head.bias"),
        (_add, r"1 unexpected: model.\x1b[2Jvisual"),
        (_reshape, "1 misshapen: stop_head.bias (expected [2], found [3])"),
    ],
)
def test_tensors_that_do_not_fit(
    refused: Callable[..., str],
    change_tensors: Callable[..., None],
    change: Callable[[dict[str, np.ndarray]], None],
    said: str,
) -> None:
    change_tensors(change)
    assert said in refused()


def test_a_tensor_that_is_not_finite(
    refused: Callable[..., str], change_tensors: Callable[..., None]
) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["stop_head.bias"][1] = np.nan

    change_tensors(edit)
    assert "stop_head.bias of the checkpoint holds a value that is not finite" in refused()


def test_truncated_weights(refused: Callable[..., str], folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "is truncated" in refused()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "$(touch gotcha).bin", "'; ls; '.pt"])
def test_pickled_weights(refused: Callable[..., str], folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    message = refused()
    assert "are pickled" in message
    _, command = message.split("What to do: ")
    # The command is for pasting into a shell: no name of the stranger's in it.
    assert name not in command
    assert "torch.load('FILE.bin'" in command


def test_an_index_that_names_no_plain_file(refused: Callable[..., str], folder: Path) -> None:
    index = {"weight_map": {"a": "model \x1b[2J.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refused()
    assert "plain file names" in message
    assert "\x1b" not in message


def test_no_tokenizer(refused: Callable[..., str], folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "holds no tokenizer" in refused()


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ("16,24", "prefill_chunks cannot be used"),
        ("0", "prefill_chunks cannot be used"),
        ("0,16", "prefill_chunks cannot be used"),
        ("16;24", "is not a list of numbers"),
    ],
)
def test_prefill_chunks_that_do_not_fit(
    refused: Callable[..., str], folder: Path, chunks: str, said: str
) -> None:
    assert said in refused(folder, None, "--prefill-chunks", chunks)


def test_an_output_below_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "cannot be written" in refused(bundle=tmp_path / "file" / "bundle")


def test_an_output_that_may_not_be_written(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("trt_runtime.staging._lock", refuse)
    assert "cannot be written" in refused()


def test_an_output_that_holds_something_else(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "manifest.json").write_text("{}")
    assert "is not replaced" in refused(bundle=tmp_path / "thesis")


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["export.weights._write", "export.finished_parts._line"])
def test_a_full_disk(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(where, _full)
    message = refused()
    assert "full" in message
    assert "Expected: " in message


def test_a_disk_that_fills_later_keeps_what_is_finished(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("export.bundle.make_graph", _full)
    assert main([str(folder), str(tmp_path / "new" / "bundle"), "--quiet"]) == 2
    errors = capsys.readouterr().err
    assert "is full" in errors
    assert re.search(
        r"\nkept: 7 of \d+ parts, 0\.00 GB, in .*\.bundle\.unfinished; the same", errors
    )
    kept = [path.name for path in (tmp_path / "new").iterdir()]
    assert kept == [".bundle.unfinished"]


def test_no_output_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 2
    assert "Nowhere to write to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("package", "options"),
    [
        ("torch", []),
        ("onnxscript", []),
        ("onnx_ir", []),
        ("ml_dtypes", ["--check"]),
        ("numpy", ["--check"]),
        ("huggingface_hub", ["--check", "--download"]),
    ],
)
def test_a_missing_package_is_said_with_what_installs_it(
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    options: list[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = refused(Path("owner/model"), None, *options)
    assert f"no {package}" in message
    assert "pip install 'ming-trt[export]'" in message


def test_the_check_needs_no_torch(folder: Path) -> None:
    """As where only the runtime and ml_dtypes are installed."""
    code = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'onnx_ir', 'onnxscript', 'huggingface_hub'):\n"
        "    sys.modules[name] = None\n"
        "from export.__main__ import main\n"
        "sys.exit(main(['--check', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("This checkpoint can be exported.\n")


def test_the_check_of_a_bad_checkpoint_is_exit_status_2(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tokenizer.json").unlink()
    assert main(["--check", str(folder)]) == 2
    assert "cannot be exported" in capsys.readouterr().out


_STUCK = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
import export.bundle
def stay(*arguments):
    print("stuck", flush=True)
    time.sleep(60)
export.bundle.make_graph = stay
from export.__main__ import main
sys.exit(main([sys.argv[1], sys.argv[2], "--quiet"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_keeps_only_what_is_finished(
    folder: Path, tmp_path: Path, number: int
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _STUCK, folder, tmp_path / "new" / "bundle"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "stuck\n"
    finally:
        child.send_signal(number)
        _, errors = child.communicate(timeout=20)
    assert child.returncode == 128 + number
    first, second = errors.splitlines()
    assert first == "interrupted; no bundle was written"
    assert second.startswith("kept: 7 of ")
    left = tmp_path / "new" / ".bundle.unfinished"
    assert {path.name for path in left.iterdir()} == {".lock", "journal.jsonl", "bundle"}
    assert {path.suffix for path in (left / "bundle").iterdir()} == {".weights"}
