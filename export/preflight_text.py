"""The preflight's report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from export.durations import about
from export.free_memory import DEFAULT_MEMORY
from export.matching import first_names, of_another_layout
from export.needs import BASIS
from export.sizes import ModelSizes, TransformerSizes
from trt_runtime.printable import printable

if TYPE_CHECKING:
    from export.preflight import PreflightReport, TensorGroup

_YES, _NO = "This checkpoint can be exported.", "This checkpoint cannot be exported: "


def format_report(report: PreflightReport) -> str:
    """Sections in the order in which a reader asks, then every problem, then the verdict."""
    sections = (
        ("", _head(report)),
        ("Sizes", _sizes(report.sizes) if report.sizes else ()),
        ("Parameters of each component", _components(report)),
        ("Stored dtypes", _groups(report.dtypes)),
        ("Stored and not used", _unused(report.unused)),
        ("Tensors", _match(report)),
        ("Config keys that are not known (they may ask for what is not done)", report.unknown_keys),
        ("Files", _files(report)),
        ("The export needs, by estimate", _needs(report)),
        (
            "Assumed before the released files could be read, and what this checkpoint says",
            _assumptions(report),
        ),
        ("Notes", report.notes),
        ("Problems", _problems(report.problems)),
    )
    lines: list[str] = []
    for title, content in sections:
        rows = list(content)
        if rows:
            lines += [title, *(f"  {row}" for row in rows), ""] if title else [*rows, ""]
    # Names of tensors, keys and tokens are a stranger's.
    return "\n".join(printable(line) for line in [*lines, verdict(report)])


def verdict(report: PreflightReport) -> str:
    """The last line: whether the checkpoint can be exported, or the first reason why not."""
    if report.ok:
        return _YES
    first = report.problems[0].splitlines()[0].rstrip(".")
    more = len(report.problems) - 1
    return f"{_NO}{first}" + (f" (and {more} more, see Problems)." if more else ".")


def _head(report: PreflightReport) -> Iterator[str]:
    yield f"Checkpoint {report.folder}"
    if report.family is not None:
        yield f"Family     {report.family.name}"
    if report.tensors:
        size = sum(tensor.bytes for tensor in report.tensors.values())
        files = len({tensor.file for tensor in report.tensors.values()})
        yield f"Weights    {len(report.tensors)} tensors, {size / 1e9:.3f} GB in {files} file(s)"


def _sizes(sizes: ModelSizes) -> Iterator[str]:
    audio = sizes.audio
    yield f"talker         {_stack(sizes.talker)}, vocabulary {sizes.talker.vocab_size}"
    for name, flow in (("DiT", sizes.flow), ("aggregator", sizes.aggregator)):
        yield (
            f"{name:<14} {flow.hidden} wide, {flow.depth} blocks, {flow.heads} heads, "
            f"{flow.feed_forward} feed-forward"
        )
    yield f"audio decoder  {_stack(audio.decoder)}"
    yield f"audio encoder  {_stack(audio.encoder)}"
    samples = sizes.patch * audio.frames_per_latent * audio.hop_length
    yield (
        f"audio          {audio.sample_rate} Hz, {audio.hop_length} samples a frame, "
        f"{audio.frames_per_latent} frames a latent of {audio.latent_dim} channels"
    )
    yield (
        f"step           {sizes.patch} latents after {sizes.history} of history: "
        f"{samples} samples, {samples / audio.sample_rate:.3f} s"
    )


def _stack(sizes: TransformerSizes) -> str:
    windows = sorted({past for past in sizes.window if past is not None})
    windowed = sum(past is not None for past in sizes.window)
    window = (
        f", {windowed} layers see {'/'.join(map(str, windows))} past positions" if windows else ""
    )
    return (
        f"{sizes.hidden} wide, {sizes.layers} layers, {sizes.heads}/{sizes.kv_heads} heads of "
        f"{sizes.head_dim}, {sizes.intermediate} intermediate, rope theta {sizes.rope_theta:g}"
        f"{window}"
    )


def _components(report: PreflightReport) -> Iterator[str]:
    yield from _groups(report.components)
    if report.components:
        for name, groups in (("used", report.components), ("unused", report.unused)):
            yield _row(
                f"all {name}",
                sum(group.tensors for group in groups),
                sum(group.parameters for group in groups),
                sum(group.bytes for group in groups),
            )


def _groups(groups: tuple[TensorGroup, ...]) -> Iterator[str]:
    for group in groups:
        yield _row(group.name, group.tensors, group.parameters, group.bytes)


def _row(name: str, tensors: int, parameters: int, size: int) -> str:
    return f"{name:<20} {tensors:>5} tensors {parameters:>14,} parameters {size / 1e6:>10.1f} MB"


def _unused(groups: tuple[TensorGroup, ...]) -> Iterator[str]:
    for group in groups:
        more = f" and {group.tensors - 1} more" if group.tensors > 1 else ""
        yield f"{group.first}{more} ({group.parameters:,} parameters)"
        yield f"    {group.name}"


def _match(report: PreflightReport) -> Iterator[str]:
    match = report.match
    if match is None or report.family is None:
        return
    if len(report.family.layouts) > 1:
        yield f"layout: {match.layout.name}"
        mixed = first_names(match.mixed) if match.mixed else "none"
        yield f"{of_another_layout(match)}: {mixed}"
    for name, found in (
        ("missing", match.missing),
        ("unexpected", match.unexpected),
        ("misshapen", match.misshapen),
        ("in an unreadable dtype", match.mistyped),
    ):
        yield f"{name}: {first_names(found) if found else 'none'}"


def _files(report: PreflightReport) -> Iterator[str]:
    if report.has_tokenizer is None:
        return
    yield f"tokenizer      {'there' if report.has_tokenizer else 'missing or damaged'}"
    yield f"campplus.onnx  {'there' if report.has_speaker_encoder else 'missing'}"
    if report.family is not None and report.has_tokenizer:
        for text in report.family.control_tokens:
            token_id = report.token_ids.get(text)
            yield f"{text:<18} {'missing' if token_id is None else token_id}"


def _needs(report: PreflightReport) -> Iterator[str]:
    needs = report.needs
    if needs is None:
        return
    yield (
        f"memory  {needs.memory / 1e9:.1f} GB with every graph's values compared, "
        f"{needs.memory_form_only / 1e9:.1f} GB without"
    )
    if needs.memory > DEFAULT_MEMORY:
        yield (
            f"        {DEFAULT_MEMORY / 1e9:.0f} GB at most: graphs that need more are compared "
            "where --memory allows"
        )
    if report.memory_free is not None:
        yield f"        {report.memory_free / 1e9:.1f} GB free: {_memory_verdict(report)}"
    yield f"disk    {needs.disk / 1e9:.2f} GB for the bundle"
    if report.disk_free is not None:
        enough = "enough" if report.disk_free >= needs.disk else "NOT enough"
        where = f"for {report.bundle}" if report.bundle else "in this folder"
        yield f"        {report.disk_free / 1e9:.2f} GB free {where}: {enough}"
    yield f"time    {about(needs.seconds)}"
    yield f"basis   {BASIS}"


def _memory_verdict(report: PreflightReport) -> str:
    needs, free = report.needs, report.memory_free
    assert needs is not None
    assert free is not None
    if free >= max(needs.free_memory, needs.memory):
        return "enough"
    if free >= needs.memory_form_only:
        return (
            f"enough, but values of the largest graphs are compared where "
            f"{needs.free_memory / 1e9:.1f} GB is free"
        )
    return "NOT enough"


def _assumptions(report: PreflightReport) -> Iterator[str]:
    for assumption in report.assumptions:
        yield f"{assumption.subject:<30} {assumption.verdict}"
    contradicted = sum(a.verdict.startswith("CONTRADICTED") for a in report.assumptions)
    if contradicted:
        yield (
            f"{contradicted} contradicted: the export goes by the checkpoint, but documents and "
            "benchmarks of this project rest on the assumed values"
        )


def _problems(problems: list[str]) -> Iterator[str]:
    for problem in problems:
        first, *rest = problem.splitlines()
        yield f"- {first}"
        yield from (f"  {line}" for line in rest)
