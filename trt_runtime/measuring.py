"""Latency, throughput and memory of engines: the runs of one folder and of its peers, in turns.

Every request speaks the same text in the same number of steps, so that random weights end too and
two folders do the same work. Whatever is told of a run is a raw value; `measurements` sums them up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trt_runtime.backends.onnxruntime_cpu import check_threads, import_onnxruntime
from trt_runtime.cuda_devices import COMPUTE_CAPABILITY, device_memory_in_use
from trt_runtime.errors import UserError
from trt_runtime.folder import check_folder, open_folder
from trt_runtime.manifest import TOKENIZER, Manifest, check_files
from trt_runtime.memory import peak_memory, resident_memory
from trt_runtime.noise import LARGEST_SEED, check_seed
from trt_runtime.numeric import whole_number
from trt_runtime.printable import shown
from trt_runtime.prompt import GRAMMARS, SPEECH_PROMPT, build_prompt
from trt_runtime.speech import Speech
from trt_runtime.spoken_text import check_text
from trt_runtime.synthesizer import MOST_SLOTS, Synthesizer
from trt_runtime.text_tokenizer import TextTokenizer

TEXT = "Say these few words, if you please, and then be quiet."
STEPS, SLOTS, RUNS = 32, (1, 4, 8), 5
#: The talker decodes between two steps: one step alone would have none to time.
FEWEST_STEPS = 2


@dataclass(frozen=True)
class Plan:
    """What is measured; raises UserError when made from values that cannot be used.

    `steps` patches are made by each request. `slots`: for each, so many requests are submitted at
    once, in as many slots. `runs` are measured, after one that is not. `seed` is that of every
    request but those that share steps, which have the seeds after it too. `threads` as in
    :func:`trt_runtime.load`.
    """

    text: str = TEXT
    steps: int = STEPS
    slots: tuple[int, ...] = SLOTS
    runs: int = RUNS
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        check_text(self.text)
        check_seed(self.seed)
        check_threads(self.threads)
        if whole_number(self.runs, 1) is None:
            raise UserError(
                "runs cannot be used",
                expected="a whole number of 1 or more",
                found=shown(self.runs),
                do="give 5 for medians that say something",
            )
        if whole_number(self.steps, FEWEST_STEPS) is None:
            raise UserError(
                "steps cannot be used",
                expected=f"a whole number of {FEWEST_STEPS} or more",
                found=shown(self.steps),
                do="leave it out for the default",
            )
        whole = [whole_number(slots, 1, MOST_SLOTS) for slots in self.slots]
        if not whole or None in whole or len(set(whole)) < len(whole):
            raise UserError(
                "slots cannot be used",
                expected=f"whole numbers from 1 to {MOST_SLOTS}, each once, such as 1,4,8",
                found=",".join(shown(slots, form=str) for slots in self.slots) or "none",
                do="leave it out for the default",
            )
        if max(self.slots) > self.steps:
            raise UserError(
                "There are more slots than steps, and they would never all be taken",
                expected="one request to enter at each step: as many steps as slots, or more",
                found=f"{max(self.slots)} slots, {self.steps} steps",
                do="ask for fewer slots, or more steps",
            )

    @property
    def options(self) -> dict[str, Any]:
        """Those of every request: a fixed number of steps, and the text in one go."""
        return {"min_steps": self.steps, "max_steps": self.steps, "split_limit": None}

    def seeds(self, count: int) -> list[int]:
        """Of requests that share steps: others, so that experts are chosen as in real use."""
        return [(self.seed + index) % (LARGEST_SEED + 1) for index in range(count)]


@dataclass(frozen=True)
class Together:
    """As many submitted requests as slots: seconds from the first submission to the last end."""

    slots: int
    seconds: float
    audio_seconds: float


@dataclass(frozen=True)
class Run:
    """The raw values of one run of one folder; seconds all.

    `began` counts from the first measured run's beginning. `first_audio_seconds` and
    `streamed_seconds` are of one streamed request, `seconds`, `samples`, `steps` and `components`
    of one that was spoken whole; all count from the call.
    """

    number: int
    began: float
    first_audio_seconds: float
    streamed_seconds: float
    seconds: float
    samples: int
    steps: int
    components: Mapping[str, float]
    together: tuple[Together, ...]


@dataclass
class Measured:
    """One folder and its runs.

    `load_seconds`: checking every file's hash, and loading. `warmup_seconds`: of
    :meth:`Synthesizer.warmup`. `resident_bytes` and `device_bytes`: by how much the resident memory
    of the process, and the memory in use on the GPU, had grown from before the folder was loaded to
    after its unmeasured run; None where that cannot be told.
    """

    path: Path
    manifest: Manifest
    prompt_tokens: int
    warnings: tuple[str, ...] = ()
    load_seconds: float = 0.0
    warmup_seconds: float = 0.0
    resident_bytes: int | None = None
    device_bytes: int | None = None
    runs: list[Run] = field(default_factory=list)


@dataclass(frozen=True)
class Measurements:
    """The first folder, then its peers; `peak_bytes` is the process's, all of them together."""

    plan: Plan
    folders: Sequence[Measured]
    peak_bytes: int | None


def check(folder: str | Path | None, plan: Plan) -> Measured:
    """The folder, still without runs. Raises FolderError or UserError where the plan does not fit.

    By its manifest, tokenizer and hashes: nothing is loaded. None is the embedded default.
    """
    path, manifest = check_folder(folder)
    most = manifest.geometry.max_steps
    if plan.steps > most:
        raise UserError(
            f"{path} cannot make so many steps",
            expected=f"at most {most}, which it was exported for",
            found=f"{plan.steps} steps",
            do="ask for fewer steps, or export with a larger --max-steps",
        )
    grammar = GRAMMARS.get(manifest.family)
    if grammar is None:  # said in full where it is loaded
        return Measured(path, manifest, 0)
    tokenizer = TextTokenizer.load(path / TOKENIZER)
    prompt = build_prompt(tokenizer, grammar, prompt=SPEECH_PROMPT, text=check_text(plan.text))
    tokens, room = len(prompt.ids), manifest.geometry.cache_length
    if tokens + plan.steps > room:
        raise UserError(
            f"{path} has no room for the text and its steps",
            expected=f"prompt tokens + steps of at most {room}",
            found=f"{tokens} + {plan.steps}",
            do="shorten the text, or ask for fewer steps",
        )
    # Last, since it reads all of it; every folder is then as well cached as the others.
    check_files(path, manifest)
    return Measured(path, manifest, tokens)


def measure(
    folders: Iterable[str | Path | None],
    plan: Plan,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Measurements:
    """Measures the folders, the first and its peers, run by run in turns.

    So a machine that slows down slows all of them; who begins changes from run to run. Each folder
    is checked before any is loaded, and all have been loaded and warmed up before the first run.
    `on_progress` gets a line before each piece of work. Raises FolderError and UserError.
    """
    checked = [check(folder, plan) for folder in folders]
    # Else the first folder would seem to take longer to load. TensorRT's engines do without it; a
    # folder that needs it says so where it is loaded.
    with suppress(UserError):
        import_onnxruntime()
    with ExitStack() as stack:
        candidates = []
        for measured in checked:
            on_progress(f"load and warm up: {measured.path}")
            candidates.append(_Candidate(measured, plan, stack))
        started = time.perf_counter()
        for number in range(1, plan.runs + 1):
            first = (number - 1) % len(candidates)
            for candidate in candidates[first:] + candidates[:first]:
                on_progress(f"run {number} of {plan.runs}: {candidate.measured.path}")
                candidate.measured.runs.append(candidate.run(number, started))
    return Measurements(plan, checked, peak_memory())


def speak_together(
    speaker: Synthesizer, text: str, seeds: Iterable[int], options: Mapping[str, Any]
) -> list[Speech]:
    """Submits a request a seed, all at once, and waits for all of them."""
    submitted = [speaker.submit(text, seed=seed, **options) for seed in seeds]
    return [submission.result() for submission in submitted]


class _Candidate:
    """A loaded folder that is measured; `stack` closes it."""

    def __init__(self, measured: Measured, plan: Plan, stack: ExitStack) -> None:
        self.measured, self._plan = measured, plan
        resident, device = resident_memory(), self._device_memory()
        began = time.perf_counter()
        opened = open_folder(measured.path, threads=plan.threads)
        self._alone = stack.enter_context(Synthesizer(opened))
        loaded = time.perf_counter()
        self._alone.warmup()
        measured.load_seconds = loaded - began
        measured.warmup_seconds = time.perf_counter() - loaded
        measured.warnings = self._alone.warnings
        # One set of weights for all of them.
        self._together = [
            (slots, stack.enter_context(Synthesizer(opened, slots=slots))) for slots in plan.slots
        ]
        # Not measured: first touches, and on a GPU the captures of each number of requests.
        self.run(0, time.perf_counter())
        # Before the next folder is loaded: what has grown since is this one's.
        measured.resident_bytes = _growth(resident, resident_memory())
        measured.device_bytes = _growth(device, self._device_memory())

    def run(self, number: int, started: float) -> Run:
        """Streamed, whole, then together with others, each number of slots."""
        plan, began = self._plan, time.perf_counter()
        first = streamed = 0.0
        for chunk in self._alone.stream(plan.text, seed=plan.seed, **plan.options):
            streamed = time.perf_counter() - began
            first = first or (streamed if len(chunk.audio) else 0.0)
        speech = self._alone.synthesize(plan.text, seed=plan.seed, **plan.options)
        return Run(
            number=number,
            began=began - started,
            first_audio_seconds=first,
            streamed_seconds=streamed,
            seconds=speech.timings.total,
            samples=len(speech.audio),
            steps=speech.steps,
            components=dict(speech.timings.components),
            together=tuple(self._speak_together(*pair) for pair in self._together),
        )

    def _speak_together(self, slots: int, speaker: Synthesizer) -> Together:
        plan, began = self._plan, time.perf_counter()
        speeches = speak_together(speaker, plan.text, plan.seeds(slots), plan.options)
        seconds = time.perf_counter() - began
        return Together(slots, seconds, sum(speech.duration for speech in speeches))

    def _device_memory(self) -> int | None:
        on_gpu = COMPUTE_CAPABILITY in self.measured.manifest.machine
        return device_memory_in_use() if on_gpu else None


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
