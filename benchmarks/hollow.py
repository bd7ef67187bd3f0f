"""Folders without their parameters: small to carry to another machine, and made whole again there.

    python -m benchmarks.hollow random BUNDLE         parameters by recipe, from their names alone
    python -m benchmarks.hollow out FOLDER BUNDLE     leaves out of FOLDER what the recipe gives
    python -m benchmarks.hollow fill FOLDER           writes it again, and checks every hash

A GPU for hire takes files of megabytes, engines of the released sizes have gigabytes. What is
measured of speed and of precision needs weights of the right sizes and scales, not Ming's; the
recipe gives each parameter normal numbers of its own, of variance 1 / fan-in in matrices, rounded
to bfloat16. A filled folder has the SHA-256s of its manifest, or an error says which file has not.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np

from engines.stored_dtypes import numpy_dtype
from trt_runtime.errors import UserError
from trt_runtime.exit_status import exit_status
from trt_runtime.manifest import MANIFEST, Manifest, StoredTensor, read_manifest, sha256_of

#: What lies beside a hollow folder's manifest: the tensors that no recipe gives, and where the
#: recipe's go.
KEPT, RECIPE = "kept.npz", "recipe.json"
# A folded cast's name.
_FOLDED = ".float32"


def recipe(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The parameter of this name, (shape) bfloat16."""
    generator = np.random.Generator(np.random.Philox(key=zlib.crc32(name.encode())))
    values = generator.standard_normal(shape, np.float32)
    if "norm" in name or name.endswith("window"):
        values = 1 + 0.1 * values
    elif name.endswith(".table"):
        values *= 0.02
    elif len(shape) == 1:
        values *= 0.05
    else:
        # (in, out), but experts, which lie (experts, out, in).
        values *= shape[-1 if len(shape) == 3 and "experts" in name else -2] ** -0.5
    return values.astype(ml_dtypes.bfloat16)


def _tensors(manifest: Manifest) -> dict[str, StoredTensor]:
    """Every stored tensor of graphs, by the name of the parameter that it would be."""
    return {
        name.removesuffix(_FOLDED): tensor
        for graph in manifest.graphs.values()
        for name, tensor in graph.initializers.items()
    }


def randomize(bundle: Path) -> None:
    """Gives the bundle's parameters the recipe's values, and its manifest their hashes."""
    manifest = read_manifest(bundle)
    tensors = _tensors(manifest)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda item: _write(bundle, item[1], recipe(item[0], item[1].shape)),
                      tensors.items()))  # fmt: skip
    files = dict(manifest.files)
    for file in {tensor.file for tensor in tensors.values()}:
        files[file] = ((bundle / file).stat().st_size, sha256_of(bundle / file))
    (bundle / MANIFEST).write_text(replace(manifest, files=files).to_json(), encoding="utf-8")


def _write(folder: Path, tensor: StoredTensor, values: np.ndarray) -> None:
    with (folder / tensor.file).open("r+b") as file:
        file.seek(tensor.offset)
        file.write(values.astype(numpy_dtype(tensor.dtype)).tobytes())


def empty(folder: Path, bundle: Path) -> None:
    """Leaves out of an engine folder of `bundle` the files that the recipe gives again."""
    manifest = read_manifest(folder)
    shapes = {name: t.shape for name, t in _tensors(read_manifest(bundle)).items()}
    places, kept = {}, {}
    for name, tensor in _tensors(manifest).items():
        key = f"{tensor.file}:{tensor.offset}"
        if shapes.get(name) == tensor.shape:
            places[key] = name
        else:
            kept[key] = np.fromfile(folder / tensor.file, np.uint8, tensor.bytes,
                                    offset=tensor.offset)  # fmt: skip
    files = {key.rpartition(":")[0] for key in (*places, *kept)}
    files |= {t.file for entry in manifest.components.values() for t in entry.tensors.values()}
    (folder / RECIPE).write_text(
        json.dumps({"places": places, "shapes": shapes, "files": sorted(files)}), encoding="utf-8"
    )
    np.savez_compressed(folder / KEPT, **kept)
    for file in files:
        (folder / file).unlink()


def fill(folder: Path) -> None:
    """Makes a hollow folder whole; UserError for a file that has then another hash."""
    manifest = read_manifest(folder)
    noted = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    shapes = {name: tuple(shape) for name, shape in noted["shapes"].items()}
    for file in noted["files"]:
        with (folder / file).open("wb") as output:
            output.truncate(manifest.files[file][0])
    by_place = {
        f"{t.file}:{t.offset}": t
        for graph in manifest.graphs.values()
        for t in graph.initializers.values()
    }

    def put(item: tuple[str, str]) -> None:
        place, name = item
        _write(folder, by_place[place], recipe(name, shapes[name]))

    with ThreadPoolExecutor() as pool:
        list(pool.map(put, noted["places"].items()))
    with np.load(folder / KEPT) as kept:
        for key in kept.files:
            with (folder / by_place[key].file).open("r+b") as output:
                output.seek(by_place[key].offset)
                output.write(kept[key].tobytes())
    for tensor, values in _kernel_tensors(manifest, shapes):
        _write(folder, tensor, values)
    for file in noted["files"]:
        if sha256_of(folder / file) != manifest.files[file][1]:
            raise UserError(
                f"{folder / file} is not what it was before it was left out",
                expected=f"SHA-256 {manifest.files[file][1]}",
                found=sha256_of(folder / file),
                do="are numpy and ml_dtypes of the versions that left it out?",
            )


def _kernel_tensors(
    manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[StoredTensor, np.ndarray]]:
    """The tensors of a talker for the plugin loop, which are made of several parameters."""
    from trt_runtime.contract import TALKER
    from trt_runtime.plugins.layout import kernel_array, kernel_tensors
    from trt_runtime.talker_kernels import kernel_sizes

    entry = manifest.components.get(TALKER)
    if entry is None or not entry.tensors:
        return
    sizes = kernel_sizes(entry.sizes)
    for tensor in kernel_tensors(sizes):
        sources = {name: recipe(name, shapes[name]) for name in tensor.sources}
        yield entry.tensors[tensor.name], kernel_array(sizes, tensor, sources)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = result.add_subparsers(dest="command", required=True)
    for name in ("random", "out", "fill"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        if name == "out":
            command.add_argument("bundle", type=Path)
    return result


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "random":
        randomize(arguments.folder)
    elif arguments.command == "out":
        empty(arguments.folder, arguments.bundle)
    else:
        fill(arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(
        exit_status(
            lambda: _run(parser().parse_args()), "hollow", interrupted="hollow: interrupted"
        )
    )
