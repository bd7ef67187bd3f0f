"""One deserialised engine: its profiles, checked against the manifest, and contexts that run them.

A context runs one profile in memory that it shares with all others of the stream, which never run
at a time. Its shapes are set once; what is captured has its addresses set once too.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_runtime.backends.cuda_memory import ALIGNMENT, Allocation, Capture, CudaStream
from trt_runtime.contract import NEXT, TALKER, talker_graph_name
from trt_runtime.errors import FolderError, MingError
from trt_runtime.kernel_cache import KernelCache
from trt_runtime.manifest import GraphEntry, Manifest, rebuild_command
from trt_runtime.tensorrt_check import WEIGHTS_ON_GPU
from trt_runtime.tensorrt_library import Library, TensorrtError


class Arena:
    """Activation memory of all contexts of one stream: as much as the largest needs."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self._memory: Allocation | None = None

    def take(self, size: int) -> Allocation:
        """At least `size` bytes. What was taken before stays where it is: captures know it."""
        if self._memory is None or self._memory.bytes < size:
            self._memory = self._stream.allocate(size)
        return self._memory


@dataclass(frozen=True, eq=False)
class Place:
    """Where a backend's engines live: the library and its runtime, the stream, the shared memory.

    `gpu` names the GPU for kernels that are kept for it.
    """

    library: Library
    runtime: Any
    stream: CudaStream
    arena: Arena
    gpu: str


class Engine:
    """The engine of one component of a folder.

    Raises FolderError where its file is no engine of this library or another than the manifest's.
    """

    def __init__(self, place: Place, folder: Path, manifest: Manifest, component: str) -> None:
        self.place, self.component = place, component
        self.profiles = manifest.components[component].profiles
        graphs = {n: g for n, g in manifest.graphs.items() if g.component == component}
        #: By the number of tokens of a call: the graph that it is.
        self._entries: dict[int, GraphEntry] = {
            tokens: graphs[name]
            for tokens in dict.fromkeys(tokens for _, tokens in self.profiles)
            if (name := _graph_of(component, tokens, graphs)) is not None
        }
        files = {entry.file for entry in graphs.values()}
        self._rebuild = rebuild_command(manifest, folder)
        if len(files) != 1 or not self._fits(graphs):
            raise self._damaged(
                "one engine file, and a profile for each of its graphs",
                f"{', '.join(sorted(files))} with profiles {[list(p) for p in self.profiles]}",
            )
        self._file = files.pop()
        most_weights = manifest.machine.get(WEIGHTS_ON_GPU, 0)
        self._engine = self._load(folder / self._file, most_weights)
        self._check_tensors()
        library = place.library
        self._config = library.runtime_config(self._engine)
        _, digest = manifest.files[self._file]
        self._kernels = KernelCache(f"{digest[:32]}-{library.version}-{place.gpu}")
        if self._config is not None:
            self._kernels.attach(self._config)

    @property
    def activation_bytes(self) -> int:
        """Memory that any of its profiles needs while it runs."""
        return self.place.library.activation_bytes(self._engine)

    def entry(self, tokens: int = 1) -> GraphEntry:
        """The manifest's graph of so many tokens a call."""
        return self._entries[tokens]

    def sizes(self, tokens: int = 1) -> list[int]:
        """The numbers of slots that have a profile, ascending."""
        return sorted(slots for slots, of in self.profiles if of == tokens)

    def execution(self, slots: int, tokens: int = 1) -> Execution:
        """A new context for exactly so many slots and tokens."""
        return Execution(self, slots, tokens)

    def make_context(self) -> Any:
        """A context at no profile yet, without memory; TensorrtError where there can be none."""
        return self.place.library.make_context(self._engine, self._config)

    def keep_kernels(self) -> None:
        """Keeps what was compiled for this GPU so far, where the library compiles here."""
        if self._config is not None:
            self._kernels.save()

    def not_capturable(self, what: str) -> FolderError:
        return FolderError(
            f"{what} cannot be captured as a CUDA graph",
            expected="an engine without allocations or control flow of its own while it runs",
            found=f"{self._file}, of which {self.place.library.name} says that it has some",
            do=f"build it again: {self._rebuild}",
        )

    def _fits(self, graphs: Mapping[str, GraphEntry]) -> bool:
        """Whether each graph has a profile and each profile a graph."""
        named = {id(entry) for entry in self._entries.values()}
        tokens = {tokens for _, tokens in self.profiles}
        return named == {id(entry) for entry in graphs.values()} and tokens == set(self._entries)

    def _load(self, path: Path, most_weights: int) -> Any:
        library, stream = self.place.library, self.place.stream
        try:
            # Mapped: a copy in memory of our own would be one beside the library's.
            with path.open("rb") as file:
                serialized = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with stream.ordered():
                return library.deserialize(self.place.runtime, serialized, most_weights)
        except (OSError, ValueError, TensorrtError) as error:
            raise FolderError(
                f"{library.name} {library.version} cannot load {path}",
                expected="an engine that build-engines wrote for this library and GPU",
                found=str(error),
                do=f"build it again: {self._rebuild}",
            ) from error

    def _check_tensors(self) -> None:
        engine, library = self._engine, self.place.library
        entry = self._entries[min(self._entries)]
        # All calls of an engine have the same tensors in other sizes.
        wanted = {t.name: ("INPUT", t.dtype) for t in entry.inputs}
        wanted |= {t.name: ("OUTPUT", t.dtype) for t in entry.outputs}
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        found = {
            name: (
                engine.get_tensor_mode(name).name,
                library.dtype_name(engine.get_tensor_dtype(name)),
            )
            for name in names
        }
        if wanted != found:
            raise self._damaged(_differences(wanted, found), _differences(found, wanted))
        # A tensor that shapes are computed of would be read on the host, at a device's address.
        host = [name for name in names if engine.get_tensor_location(name).name != "DEVICE"]
        if host:
            raise self._damaged("every tensor in device memory", f"{', '.join(host)} on the host")
        aliases = {n for n in entry.state if library.aliased_input(engine, n + NEXT) == n}
        if aliases != set(entry.in_place):
            raise self._damaged(
                f"state updated in place: {', '.join(entry.in_place) or 'none'}",
                ", ".join(sorted(aliases)) or "none",
            )
        if engine.num_optimization_profiles != len(self.profiles):
            raise self._damaged(
                f"{len(self.profiles)} profiles", str(engine.num_optimization_profiles)
            )
        for index, (slots, tokens) in enumerate(self.profiles):
            for tensor in self._entries[tokens].inputs:
                shape = tensor.sized(slots).shape
                least, _, most = engine.get_tensor_profile_shape(tensor.name, index)
                within = len(least) == len(shape) and all(
                    low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
                )
                if not within:
                    raise self._damaged(
                        f"{tensor.name} of shape {shape} in profile {index}",
                        f"{tuple(least)} to {tuple(most)}",
                    )

    def _damaged(self, expected: str, found: str) -> FolderError:
        return FolderError(
            f"The engine of {self.component} is another than the manifest says",
            expected=expected,
            found=found,
            do=f"build it again: {self._rebuild}",
        )


class Execution:
    """A context at one profile. Used within the stream's order."""

    def __init__(self, engine: Engine, slots: int, tokens: int) -> None:
        self._engine, self._place = engine, engine.place
        self.name = f"{engine.component} ({slots} slots, {tokens} tokens)"
        library, stream = self._place.library, self._place.stream
        profile = engine.profiles.index((slots, tokens))
        with stream.ordered():
            self._context = engine.make_context()
            # Dropped later, in order: work of the stream may still use what a context owns.
            weakref.finalize(self, stream.discard, "", self._context)
            self._checked("set_optimization_profile_async", profile, stream.handle)
            #: Held as long as the context, which knows only its address.
            self._memory = self._place.arena.take(engine.activation_bytes)
            library.give_memory(self._context, self._memory.pointer, self._memory.bytes)
            for tensor in engine.entry(tokens).inputs:
                self._checked("set_input_shape", tensor.name, tensor.sized(slots).shape)

    def address(self, tensor: str, pointer: int) -> None:
        """Where a tensor lies; whoever gives it keeps the memory.

        Of state that is updated in place, input and output are given the same.
        """
        if pointer % ALIGNMENT:
            raise MingError(
                f"{self.name}: {tensor} would lie at an address that is no multiple of {ALIGNMENT}"
            )
        self._checked("set_tensor_address", tensor, pointer)

    def enqueue(self) -> None:
        """Runs it on the stream."""
        self._checked("execute_async_v3", self._place.stream.handle)

    def capture(self, work: Callable[[], None]) -> Capture:
        """`work`, which enqueues this and may do more, as a graph; it runs once before, on zeros.

        What a context does the first time it runs, as to load kernels, cannot be captured.
        """
        library, stream = self._place.library, self._place.stream
        with stream.ordered():
            work()
            stream.synchronize()
            if not library.is_capturable(self._context, stream.handle):
                raise self._engine.not_capturable(self.name)
            return stream.capture(work)

    def _checked(self, method: str, *arguments: Any) -> None:
        if not getattr(self._context, method)(*arguments):
            shown = ", ".join(repr(argument) for argument in arguments[:2])
            raise self._place.library.error(f"{self.name}: {method}({shown}) failed")


def pieces(slots: int, sizes: list[int]) -> Iterator[tuple[int, int, int]]:
    """Runs for so many slots, in the order of their rows: (first row, size, rows that count).

    sizes: ascending. As many of the largest as are full, then the smallest that holds the rest.
    """
    first = 0
    while first < slots:
        rest = slots - first
        size = next((size for size in sizes if size >= rest), sizes[-1])
        yield first, size, min(size, rest)
        first += size


def _graph_of(component: str, tokens: int, graphs: Mapping[str, GraphEntry]) -> str | None:
    if component == TALKER:
        name = talker_graph_name(tokens)
        return name if name in graphs else None
    return next(iter(graphs)) if len(graphs) == 1 and tokens == 1 else None


def _differences(some: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    """Those of `some` that `others` has not, or has otherwise."""
    rows = [f"{name} {' '.join(row)}" for name, row in some.items() if others.get(name) != row]
    return ", ".join(rows[:8]) or "no others"
