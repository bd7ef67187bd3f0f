"""TensorRT and TensorRT-RTX behind one interface: the one file that imports either.

Used as of TensorRT 10.13, 11 and TensorRT-RTX 1.7, by their Python references:
https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/infer/Core/Engine.html and
https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/_static/python-api. What the two have in
common is called alike; the rest is hidden here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import re
import sys
from collections import deque
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trt_runtime.errors import MingError, UserError
from trt_runtime.importable import is_importable

log = logging.getLogger("trt_runtime.tensorrt")

TENSORRT, TENSORRT_RTX = "tensorrt", "tensorrt-rtx"
#: By target, the module that builds and runs its engines.
MODULES = {TENSORRT: "tensorrt", TENSORRT_RTX: "tensorrt_rtx"}
#: By target, the distributions that can have put the module there, and where its version stands.
_DISTRIBUTIONS = {
    TENSORRT: ("tensorrt-cu13", "tensorrt-cu12", "tensorrt"),
    TENSORRT_RTX: ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
}
#: Messages of the library that are kept for the error that follows from them.
_KEPT_MESSAGES = 4


class TensorrtError(MingError):
    """A call of the library's that failed, with what it logged of it."""


def install_command(target: str) -> str:
    """What installs the library of a target."""
    return f"pip install 'ming-trt[{target}]'"


@functools.cache
def load_library(target: str) -> Library:
    """The library that runs engines of `target`, loaded once.

    Raises UserError with the command that installs it where it is missing or cannot be loaded.
    """
    name = MODULES[target]
    try:
        module = importlib.import_module(name)
    except Exception as error:  # whatever a module of this name does when it is imported
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from error
        # Any other fault of loading is told in the loader's own words: often a missing library.
        raise UserError(
            f"Engines of target {target} need {name}, which is not installed or cannot be loaded",
            expected=f"one of the packages {', '.join(_DISTRIBUTIONS[target])}",
            found=str(error),
            do=f"{install_command(target)}; `ming-trt doctor` shows what is installed",
        ) from error
    if not hasattr(module, "ICudaEngine") or not hasattr(module, "__version__"):
        raise UserError(
            f"{name} is damaged, or another package of that name",
            expected="NVIDIA's module, with ICudaEngine",
            found=str(getattr(module, "__file__", None)),
            do=f"pip uninstall {' '.join(_DISTRIBUTIONS[target])}, then {install_command(target)}",
        )
    return Library(target, name, str(module.__version__), module, _make_logger(module))


def installed_version(target: str) -> str | None:
    """The version that an import of the target's library would give, without importing it.

    None where it is not installed, "unknown" where nothing says its version. Of several
    distributions that install the same files, those of the last stay: so the files are asked first.
    """
    name = MODULES[target]
    loaded = getattr(sys.modules.get(name), "__version__", None)
    if isinstance(loaded, str):
        return loaded
    if not is_importable(name):
        return None
    for module in (name, f"{name}_bindings"):
        if found := _version_in_file(module):
            return found
    for distribution in _DISTRIBUTIONS[target]:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def _version_in_file(module: str) -> str | None:
    """`__version__ = "..."` of a module's own file."""
    if not is_importable(module):
        return None
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    match = re.search(r"^__version__\s*=\s*[\"']([^\"']+)[\"']", text, re.MULTILINE)
    return None if match is None else match[1]


def version_numbers(version: str) -> tuple[int, ...]:
    """(1, 7, 1, 116) of "1.7.1.116"; what follows the numbers is left out."""
    match = re.match(r"\d+(\.\d+)*", version)
    return () if match is None else tuple(map(int, match[0].split(".")))


@dataclass(frozen=True, eq=False)
class Library:
    """A loaded library. `module` is for what only building needs; running goes through the methods.

    `name` is the module's, `version` as it says it. Not thread-safe: a backend calls it in turns.
    """

    target: str
    name: str
    version: str
    module: Any
    logger: Any

    @property
    def is_rtx(self) -> bool:
        """Whether it compiles the engine's kernels on the GPU that runs them."""
        return self.target == TENSORRT_RTX

    @property
    def cuda_major(self) -> str:
        """The major version of CUDA that the installed package is made for, by its name.

        "" where no package says it, as in JetPack and NVIDIA's containers.
        """
        for distribution in _DISTRIBUTIONS[self.target]:
            try:
                metadata.version(distribution)
            except metadata.PackageNotFoundError:
                continue
            if match := re.search(r"-cu(\d+)$", distribution):
                return match[1]
        return ""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version's numbers."""
        return version_numbers(self.version)

    def error(self, what: str) -> TensorrtError:
        """An error that says `what` failed, in which library, and what that has logged of it."""
        said = "; ".join(self.logger.errors) or "it gives no reason"
        self.logger.errors.clear()
        return TensorrtError(f"{what}: {self.name} {self.version}: {said}")

    def checked(self, result: Any, what: str) -> Any:
        """`result`; TensorrtError where it is what the library gives for a failure."""
        if result is None or result is False:
            raise self.error(what)
        return result

    def make_runtime(self, *, host_code: bool = False) -> Any:
        """An IRuntime. `host_code`: of engines that carry a runtime of their own, which then runs.

        Raises TensorrtError, as where there is no driver.
        """
        self.logger.errors.clear()
        try:
            runtime = self.module.Runtime(self.logger)
        except Exception as error:  # pybind11 turns a null pointer into a TypeError
            raise self.error("the runtime could not be made") from error
        if host_code:
            runtime.engine_host_code_allowed = True
        return runtime

    def deserialize(self, runtime: Any, serialized: Any, most_weights: int = 0) -> Any:
        """An ICudaEngine of what has the buffer protocol; TensorrtError where it is none.

        Of an engine that was built for it the GPU keeps `most_weights` bytes of weights, 0 for all.
        """
        self.logger.errors.clear()
        if reasons := self._why_invalid(runtime, serialized):
            raise self.error(f"the engine does not run here ({reasons})")
        try:
            engine = runtime.deserialize_cuda_engine(serialized)
        except Exception as error:  # pybind11 turns what C++ throws into several classes
            raise self.error(f"the engine could not be deserialised ({error})") from error
        if engine is None:
            raise self.error("the engine could not be deserialised")
        if engine.streamable_weights_size:
            streamable = engine.streamable_weights_size
            self.stream_weights(engine, min(most_weights or streamable, streamable))
        return engine

    def _why_invalid(self, runtime: Any, serialized: Any) -> str:
        """What RTX finds in an engine's header that keeps it from running here; "" where nothing.

        TensorRT has no such question, and answers by deserialising.
        """
        if not self.is_rtx:
            return ""
        header = bytes(memoryview(serialized)[: runtime.engine_header_size])
        if len(header) < runtime.engine_header_size:
            return "it ends within its header"
        validity, found = runtime.get_engine_validity(header)
        if validity == self.module.EngineValidity.SUBOPTIMAL:
            log.warning("an engine runs here, but could be faster if it were built again")
        if validity != self.module.EngineValidity.INVALID:
            return ""
        flags = self.module.EngineInvalidityDiagnostics.__members__
        reasons = [name for name, flag in flags.items() if int(flag) & int(found)]
        return ", ".join(reasons).lower().replace("_", " ") or "it gives no reason"

    def stream_weights(self, engine: Any, budget: int) -> None:
        """Keeps `budget` bytes of the streamable weights on the GPU, the rest in host memory.

        Only before the engine has a context. Raises TensorrtError where the library takes another.
        """
        engine.weight_streaming_budget_v2 = budget
        if engine.weight_streaming_budget_v2 != budget:
            raise self.error(f"a weight streaming budget of {budget} bytes was not taken")

    def runtime_config(self, engine: Any) -> Any:
        """How a context runs whose memory and captures are ours; None where strategy says it all.

        RTX: kernels are compiled for the shapes before they first run, not beside it. What is
        captured would otherwise be the kernels that serve until then.
        """
        if not self.is_rtx:
            return None
        module, config = self.module, engine.create_runtime_config()
        self.checked(config, "a runtime configuration could not be made")
        config.set_execution_context_allocation_strategy(
            module.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        config.dynamic_shapes_kernel_specialization_strategy = (
            module.DynamicShapesKernelSpecializationStrategy.EAGER
        )
        config.cuda_graph_strategy = module.CudaGraphStrategy.DISABLED
        return config

    def make_context(self, engine: Any, config: Any) -> Any:
        """An IExecutionContext without memory of its own, which :meth:`give_memory` gives it."""
        self.logger.errors.clear()
        strategy = self.module.ExecutionContextAllocationStrategy.USER_MANAGED
        context = engine.create_execution_context(strategy if config is None else config)
        return self.checked(context, "an execution context could not be made")

    def activation_bytes(self, engine: Any) -> int:
        """Memory that a context needs while it runs, whichever the profile."""
        return int(engine.device_memory_size_v2)

    def give_memory(self, context: Any, pointer: int, size: int) -> None:
        """Memory for the context's runs, which contexts share that never run at a time."""
        context.set_device_memory(pointer, size)

    def is_capturable(self, context: Any, stream: int) -> bool:
        """Whether the context's runs on this stream can be captured, as far as the library says.

        TensorRT does not: there a capture is tried.
        """
        ask = getattr(context, "is_stream_capturable", None)
        return True if ask is None else bool(ask(stream))

    def aliased_input(self, engine: Any, output: str) -> str | None:
        """The input whose memory the output is written to, where a KV cache is updated in place."""
        ask = getattr(engine, "get_aliased_input_tensor", None)
        return None if ask is None else (ask(output) or None)

    def dtype_name(self, dtype: Any) -> str:
        """The contract's name of a DataType."""
        names = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}
        return names.get(dtype.name, dtype.name.lower())


def _make_logger(module: Any) -> Any:
    """An ILogger that logs to Python's and keeps the last errors, for who gets a None."""
    severity = module.ILogger.Severity
    levels = {
        severity.INTERNAL_ERROR: logging.ERROR,
        severity.ERROR: logging.ERROR,
        severity.WARNING: logging.WARNING,
        severity.INFO: logging.INFO,
        severity.VERBOSE: logging.DEBUG,
    }

    class Logger(module.ILogger):
        def __init__(self) -> None:
            # pybind11 asks for the base's own, not for super's.
            module.ILogger.__init__(self)
            self.errors: deque[str] = deque(maxlen=_KEPT_MESSAGES)

        def log(self, severity: Any, msg: str) -> None:
            level = levels.get(severity, logging.DEBUG)
            if level == logging.ERROR:
                self.errors.append(" ".join(msg.split()))
            log.log(level, "%s", msg)

    return Logger()
