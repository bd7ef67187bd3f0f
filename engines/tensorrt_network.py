"""From a prepared ONNX graph to a checked network and its build configuration.

Written for TensorRT 10.13 to 11.x and TensorRT-RTX 1.7, whose networks are strongly typed: on 10.x
that is a flag, later the only kind. API: INetworkDefinition, OnnxParser and IBuilderConfig of
https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/ and of the tensorrt_rtx
package. What has run where is in docs/tensorrt.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.tensorrt_job import EngineJob
from trt_runtime.tensorrt_library import Library

log = logging.getLogger(__name__)


#: Layers that the parser adds for its own purposes begin so: shapes, axes and positions.
_PARSERS_OWN = ("ONNXTRT_", "(Unnamed Layer*")
#: The library's names of the types that a cast can lose precision to.
_FLOATS = frozenset({"FLOAT", "HALF", "BF16"})


class Refused(Exception):
    """A network or an engine that is not what was asked for: `what`, and what was `found`."""

    def __init__(self, what: str, found: str) -> None:
        super().__init__(f"{what}: {found}")
        self.what, self.found = what, found


class ParsedNetwork:
    """The network, and the parser that knows which of its tensors an ONNX node became."""

    def __init__(self, library: Library, network: Any, parser: Any) -> None:
        self.library, self.network, self.parser = library, network, parser

    @property
    def num_layers(self) -> int:
        return int(self.network.num_layers)

    def output_type(self, node: str) -> str | None:
        """The name of the type of a node's first output; None where there is no such."""
        tensor = self.parser.get_layer_output_tensor(node, 0)
        return None if tensor is None else self.library.dtype_name(tensor.dtype)


def parse(library: Library, builder: Any, job: EngineJob) -> ParsedNetwork:
    """Parses the job's graph; Refused with node and source line of what the parser cannot take."""
    module, flags = library.module, 0
    strongly_typed = getattr(module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    # Where the flag is left (10.x), a network without it is weakly typed.
    if strongly_typed is not None:
        flags = 1 << int(strongly_typed)
    network = builder.create_network(flags)
    parser = module.OnnxParser(network, library.logger)
    if not parser.parse_from_file(job.graph):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        raise Refused(
            "The parser cannot take the graph",
            "; ".join(_described(error, job) for error in errors) or "it does not say why",
        )
    return ParsedNetwork(library, network, parser)


def _described(error: Any, job: EngineJob) -> str:
    node = error.node_name()
    source = job.sources.get(node, "")
    made = f", made by {source}" if source else ""
    return f"node {node!r} ({error.node_operator()}{made}): {error.desc()}"


def check_network(network: ParsedNetwork, job: EngineJob) -> None:
    """Raises Refused where the parsed network is not the precision plan, layer by layer.

    Looked at are the type of every planned node's result, the native layers, and that no input is
    left unread: a parser that drops what it does not know gives an engine that is quietly wrong.
    """
    wrong = []
    for node, wanted in job.types.items():
        found = network.output_type(node)
        if found != wanted:
            made = job.sources.get(node, "")
            wrong.append(f"{node}{f' ({made})' if made else ''} is {found}, planned {wanted}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise Refused("The network breaks its precision plan", "; ".join(wrong[:3]) + more)
    layers = [network.network.get_layer(index) for index in range(network.num_layers)]
    _check_casts(layers, job)
    kinds = Counter(layer.type.name for layer in layers)
    for kind, count in job.layers.items():
        if kinds[kind] != count:
            raise Refused(
                "The network lacks native layers", f"{kinds[kind]} of {kind}, planned {count}"
            )
    read = {
        tensor.name
        for layer in layers
        for tensor in map(layer.get_input, range(layer.num_inputs))
        if tensor is not None
    }
    inputs = [network.network.get_input(i).name for i in range(network.network.num_inputs)]
    shapes = [
        tensor.name
        for tensor in map(network.network.get_input, range(network.network.num_inputs))
        if tensor.is_shape_tensor
    ]
    if shapes:
        # Its values would be read on the host, and a replayed graph would not see them change.
        raise Refused("Sizes depend on the values of the graph's inputs", ", ".join(shapes))
    if unread := [name for name in inputs if name not in read]:
        raise Refused("The parser dropped inputs of the graph", ", ".join(unread))


def _check_casts(layers: list[Any], job: EngineJob) -> None:
    """Raises Refused for a cast of floats that nobody planned: it rounds where no node tells."""
    known = {*job.casts, *job.types}
    for layer in layers:
        if layer.type.name != "CAST" or layer.name.startswith(_PARSERS_OWN):
            continue
        if layer.name not in known and layer.get_output(0).dtype.name in _FLOATS:
            raise Refused("The network has a cast that nobody planned", layer.name)


def configure(
    library: Library,
    builder: Any,
    network: ParsedNetwork,
    job: EngineJob,
    say: Callable[..., None],
) -> Any:
    """The builder's configuration: profiles, GPUs, flags, progress."""
    module, config = library.module, builder.create_builder_config()
    # On by default, and not float32.
    config.clear_flag(module.BuilderFlag.TF32)
    for name, wanted in (
        ("VERSION_COMPATIBLE", job.version_compatible),
        ("WEIGHT_STREAMING", job.weight_streaming),
        # TensorRT-RTX captures no engine that allocates by itself, as one that streams its weights.
        ("REQUIRE_USER_ALLOCATION", library.is_rtx),
    ):
        if wanted:
            config.set_flag(getattr(module.BuilderFlag, name))
    if job.ampere_and_later:
        config.hardware_compatibility_level = module.HardwareCompatibilityLevel.AMPERE_PLUS
    # Without one, TensorRT-RTX crashes where there is no GPU.
    if job.compute_capability:
        config.num_compute_capabilities = len(job.compute_capability)
        for index, text in enumerate(job.compute_capability):
            capability = getattr(module.ComputeCapability, "SM" + text.replace(".", ""))
            if not config.set_compute_capability(capability, index):
                raise Refused("The library refuses a compute capability", text)
    _add_profiles(builder, config, network.network, job)
    if job.timing_cache:
        _use_timing_cache(config, Path(job.timing_cache))
    config.progress_monitor = _monitor(module, say)
    return config


def _add_profiles(builder: Any, config: Any, network: Any, job: EngineJob) -> None:
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    if all(-1 not in tuple(tensor.shape) for tensor in inputs):
        return
    for slots, tokens in job.profiles:
        profile = builder.create_optimization_profile()
        for tensor in inputs:
            axes = (slots, tokens)
            shape = [axes[place] if size == -1 else size for place, size in enumerate(tensor.shape)]
            # One size and no range: a profile is a bucket.
            profile.set_shape(tensor.name, shape, shape, shape)
        if config.add_optimization_profile(profile) < 0:
            raise Refused("The library refuses a profile", f"{slots} slots, {tokens} tokens")


def _use_timing_cache(config: Any, path: Path) -> None:
    """Begins with what earlier builds measured; with nothing where that was on another machine."""
    for content in ([path.read_bytes()] if path.is_file() else []) + [b""]:
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
            return
        log.warning("%s does not fit this machine: the library measures anew", path)
    raise Refused("The library takes no timing cache", str(path))


def keep_timing_cache(config: Any, path: Path) -> None:
    """Writes what the build has measured, for the next component and the next build."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(bytes(config.get_timing_cache().serialize()))
    part.replace(path)


def _monitor(module: Any, say: Callable[..., None]) -> Any:
    class Monitor(module.IProgressMonitor):
        """Says each outermost phase and how far it is."""

        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)
            self.steps: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            self.steps[phase] = steps
            say(phase=phase, parent=parent, steps=steps)

        def step_complete(self, phase: str, step: int) -> bool:
            say(phase=phase, step=step + 1, steps=self.steps.get(phase, 0))
            return True

        def phase_finish(self, phase: str) -> None:
            self.steps.pop(phase, None)

    return Monitor()
