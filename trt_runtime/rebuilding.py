"""The command that makes a folder again, as errors name it: exact where it is known, quoted.

Every value may come out of a stranger's manifest, so each becomes one harmless word of a shell's.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_runtime.printable import printable

if TYPE_CHECKING:
    from trt_runtime.manifest import Manifest

BUNDLE = "ming-trt-bundle"

_EXPORT_OPTIONS = ("cache_length", "max_steps", "prefill_chunks", "max_reference_latents")
#: Under `build["options"]` of an engine folder's manifest, what the user chose, with its option.
_BUILD_OPTIONS: Mapping[str, str] = {
    "precision": "--precision",
    "compute_capability": "--compute-capability",
    "slots": "--slots",
    "ampere_and_later": "--ampere-and-later",
    "version_compatible": "--version-compatible",
    "weight_streaming": "--weight-streaming",
}


def rebuild_command(
    manifest: Manifest,
    folder: Path,
    *,
    target: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """The command that makes `folder` again, quoted for a shell.

    A bundle does not say which checkpoint it came from, so that it is the same wherever it is made;
    an engine folder names its source and what was chosen, as far as its manifest has them.
    `target` asks for another than the manifest's, without that one's options; `options` replaces
    single ones of those noted under `build["options"]`, None leaves one out.
    """
    return command_of(
        manifest.kind, target or manifest.target, manifest.build, folder,
        {} if target in (None, manifest.target) else dict.fromkeys(_BUILD_OPTIONS), options or {},
    )  # fmt: skip


def rebuild_beside(manifest: Manifest, folder: Path, target: str) -> str:
    """The command for another target, beside `folder`: a machine that it fits may want it yet."""
    return rebuild_command(manifest, folder.with_name(f"{folder.name}-{target}"), target=target)


def export_command(folder: Path) -> str:
    """The command that makes the bundle `folder`, quoted for a shell."""
    return f"python -m export CHECKPOINT {quoted(str(folder))}"


def quoted(word: str) -> str:
    """One word of a shell's command, whatever is in it."""
    return shlex.quote(printable(word))


def command_of(
    kind: str, target: Any, build: Any, folder: Path, *replaced: Mapping[str, Any]
) -> str:
    """The same from fields that may be anything: the manifest may be damaged, or a stranger's."""
    if kind == BUNDLE:
        return export_command(folder)
    noted = build if isinstance(build, Mapping) else {}
    source = noted.get("source")
    # A leading dash would be read as an option.
    words = [
        "build-engines",
        source if isinstance(source, str) and source and source[0] != "-" else "SOURCE",
        "--target",
        target if isinstance(target, str) and target else "cpu",
    ]
    words += _options(
        noted.get("export_options"), {n: "--" + n.replace("_", "-") for n in _EXPORT_OPTIONS}
    )
    chosen = noted.get("options")
    for changes in replaced:
        chosen = {**(chosen if isinstance(chosen, Mapping) else {}), **changes}
    words += _options(chosen, _BUILD_OPTIONS)
    return " ".join(map(quoted, [*words, "--out", str(folder)]))


def _options(chosen: Any, names: Mapping[str, str]) -> Iterator[str]:
    """Options and values of those of `chosen` that `names` knows, in the order of `chosen`."""
    for name, value in chosen.items() if isinstance(chosen, Mapping) else ():
        if name not in names or value is None or value is False:
            continue
        yield names[name]
        if value is not True:
            values = value if isinstance(value, list | tuple) else [value]
            yield ",".join(map(str, values))
