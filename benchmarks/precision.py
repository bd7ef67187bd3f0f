"""What each precision of target cuda costs and gains on a GPU, on the very graphs TensorRT gets.

    python -m benchmarks.precision BUNDLE=NAME ... --out FILE

Each bundle's tail and audio decoder are built in every precision, and as a converter makes them
that turns the whole graph into float16, and run by ONNX Runtime's CUDA provider as captured graphs.
The reference is float32 on the same GPU. Inputs are shared: noise, hidden states (random; of the
bundle named `demo` those of a sentence that it speaks) and, where an error must not add up, the
history.

Patch error: ‖ours − reference‖₂ / ‖reference‖₂ of one patch after all solver steps.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hollow import RECIPE, fill
from benchmarks.provenance import bundles_parser, check_result, provenance, write_result
from engines.build import build_engines
from engines.options import BuildOptions
from engines.precision import FLOAT32, PRECISIONS
from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.contract import AUDIO_DECODER, TAIL
from trt_runtime.cuda_devices import describe_cuda
from trt_runtime.exit_status import exit_status
from trt_runtime.geometry import Geometry
from trt_runtime.manifest import Manifest, read_manifest
from trt_runtime.spread import spread

STEPS, SLOTS, WARM_UP, RUNS = 50, (1, 4, 8), 5, 30
GUIDANCE = 2.0
#: The whole graph in float16: norms, residuals, softmax, solver and all.
THROUGHOUT = "float16 throughout"


#: By name of a bundle of trained weights: what it speaks, for hidden states that are no noise.
SPOKEN = {
    "demo": "Good morning. The voice in this box was made in a few minutes, and it speaks without "
    "a network."
}


def spoken(bundle: Path, text: str) -> np.ndarray:
    """The talker's hidden states (steps, talker_hidden) while the bundle speaks, on a CPU."""
    from trt_runtime import synthesize

    trace = synthesize(text, engines=bundle, seed=5, trace=True).trace
    assert trace is not None
    return trace.hidden


class Inputs:
    """What every precision is given: `hidden` (steps, talker_hidden) and noise."""

    def __init__(self, g: Geometry, hidden: np.ndarray | None) -> None:
        rng = np.random.default_rng(3)
        draw = lambda *shape: rng.standard_normal(shape, np.float32)  # noqa: E731
        drawn = draw(STEPS, g.talker_hidden)
        self.hidden = drawn if hidden is None else hidden[:STEPS]
        self.initial = draw(STEPS, g.patch, g.latent_dim)
        self.diffusion = draw(STEPS, g.solver_steps - 1, g.patch, g.latent_dim)


def opened(folder: Path) -> tuple[Any, Manifest]:
    """A backend of the tail and the decoder alone: the talker is the same in every precision."""
    from trt_runtime.backends.onnxruntime_cuda import CudaBackend
    from trt_runtime.contract import TALKER

    manifest = read_manifest(folder)
    graphs = {name: manifest.graphs[name] for name in (TAIL, AUDIO_DECODER)}
    talker = replace(manifest.components[TALKER], tensors={})
    manifest = replace(manifest, graphs=graphs, components={**manifest.components, TALKER: talker})
    return CudaBackend(folder, manifest), manifest


def solved(
    backend: Any, g: Geometry, inputs: Inputs, history: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Every step's patch, next embedding and stop probability; each step reads the patches before.

    They are those of `history` (steps, patch, latent_dim), where that is given.
    """
    bound = backend.bind(TAIL, {}, slots=1)
    buffers = bound.buffers
    buffers["guidance"].write(GUIDANCE)
    buffers["noise_scale"].write(0.0)
    buffers["history"].write(0.0)
    rows: dict[str, list[np.ndarray]] = {"patch": [], "embedding": [], "stop_probability": []}
    for step in range(len(inputs.hidden)):
        buffers["hidden"].write(inputs.hidden[step][None, None])
        buffers["initial_noise"].write(inputs.initial[step][None])
        buffers["diffusion_noise"].write(inputs.diffusion[step][None])
        bound.run()
        for name, values in rows.items():
            values.append(buffers[name].read()[0].copy())
        if history is not None:
            past = np.zeros((1, g.history, g.latent_dim), np.float32)
            latents = history[: step + 1].reshape(-1, g.latent_dim)[-g.history :]
            past[0, -len(latents) :] = latents
            buffers["history"].write(past)
    return {name: np.array(values) for name, values in rows.items()}


def decoded(backend: Any, g: Geometry, patches: np.ndarray) -> np.ndarray:
    """The patches' audio, streamed a patch at a time."""
    decoder = AudioDecoder(backend, g)
    last = len(patches) - 1
    return np.concatenate(
        [decoder.decode(patch, last=index == last) for index, patch in enumerate(patches)]
    )


def milliseconds(backend: Any) -> dict[str, Any]:
    """A replay of the tail by number of slots, and of the audio decoder."""
    import torch

    def timed(bound: Any) -> dict[str, float]:
        times = []
        for _ in range(WARM_UP + RUNS):
            torch.cuda.synchronize()
            started = time.perf_counter()
            bound.run()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - started))
        return spread(times[WARM_UP:])

    tail = {str(slots): timed(backend.bind(TAIL, {}, slots=slots)) for slots in SLOTS}
    return {"tail_ms": tail, "audio_decoder_ms": timed(backend.bind(AUDIO_DECODER, {}))}


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def measure(folders: dict[str, Path], hidden: np.ndarray | None) -> dict[str, Any]:
    """By precision, how far it is from the first of the folders and how long it takes."""
    results: dict[str, Any] = {}
    reference: dict[str, np.ndarray] = {}
    audio: np.ndarray | None = None
    for name, folder in folders.items():
        backend, manifest = opened(folder)
        g = manifest.geometry
        inputs = Inputs(g, hidden)
        free = solved(backend, g, inputs)
        reference = reference or free
        forced = solved(backend, g, inputs, reference["patch"])
        sound = decoded(backend, g, reference["patch"])
        audio = sound if audio is None else audio
        steps = list(zip(forced["patch"], reference["patch"], strict=True))
        errors = [apart(*pair) for pair in steps]
        drift = [apart(*pair) for pair in zip(free["patch"], reference["patch"], strict=True)]
        stops = free["stop_probability"] > 0.5, reference["stop_probability"] > 0.5
        noise = float(np.sum((sound - audio) ** 2))
        results[name] = {
            "finite": bool(np.isfinite(free["patch"]).all() and np.isfinite(sound).all()),
            "patch_error": spread(errors),
            "patch_error_of_last_free_step": drift[-1],
            "largest_patch_error_of_a_free_step": max(drift),
            "embedding_error": apart(forced["embedding"], reference["embedding"]),
            "stop_probability_error": float(
                np.abs(forced["stop_probability"] - reference["stop_probability"]).max()
            ),
            "stop_decisions_that_differ": int(np.sum(stops[0] != stops[1])),
            "audio_decoder_snr_db": 10 * float(np.log10(np.sum(audio**2) / noise))
            if noise
            else None,
            **milliseconds(backend),
        }
        print(name, results[name], flush=True)
    return results


def stop_decisions(golden: str, scratch: Path) -> dict[str, Any]:
    """The recorded requests of a golden checkpoint, with their noise: decisions to stop.

    Whole requests: the talker's bfloat16 is in it, and each step reads what the one before made.
    """
    from tests import goldens
    from tests.trt_runtime.test_golden_speech import noise_of, options_of
    from trt_runtime.folder import open_folder
    from trt_runtime.synthesizer import Synthesizer

    arrays, recorded = goldens.load_npz(golden), goldens.load_json(golden)["meta"]
    results: dict[str, Any] = {}
    for precision in PRECISIONS:
        speaker = Synthesizer(open_folder(scratch / precision))
        decisions, differ, nearest = 0, 0, 1.0
        for case, meta in recorded.items():
            request = meta["request"]
            trace = speaker.synthesize(
                request["text"], noise=noise_of(case, arrays), trace=True, **options_of(request)
            ).trace
            assert trace is not None
            wanted = arrays[f"{case}/stop_prob"].reshape(-1)
            found = trace.stop_probabilities[: len(wanted)]
            differ += int(np.sum((found > 0.5) != (wanted > 0.5))) + len(wanted) - len(found)
            decisions += len(wanted)
            nearest = min(nearest, float(np.abs(wanted - 0.5).min()))
        results[precision] = {
            "requests": len(recorded), "decisions": decisions, "differ": differ,
            "nearest_to_one_half": nearest,
        }  # fmt: skip
    return results


def float16_throughout(folder: Path, out: Path) -> Path:
    """The float32 folder's graphs as ONNX Runtime's own converter makes them float16."""
    import json

    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    out.mkdir()
    data = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for name in (TAIL, AUDIO_DECODER):
        model = onnx.load(folder / f"{name}.onnx")
        low = convert_float_to_float16(model, keep_io_types=True, disable_shape_infer=True)
        onnx.save(low, out / f"{name}.onnx")
        data["graphs"][name]["initializers"] = {}
    (out / "manifest.json").write_text(json.dumps(data), encoding="utf-8")
    return out


#: By name of a bundle that is a golden checkpoint's: its recorded requests.
_GOLDEN = {"tiny-dense": "dense_e2e", "tiny-experts": "moe_e2e"}


def _of_bundle(name: str, bundle: Path, hidden: np.ndarray | None, scratch: Path) -> dict[str, Any]:
    if (bundle / RECIPE).exists():
        fill(bundle)
    folders = {
        precision: build_engines(
            bundle, scratch / precision, target="cuda", options=BuildOptions(precision)
        )
        for precision in (FLOAT32, *(name for name in PRECISIONS if name != FLOAT32))
    }
    folders[THROUGHOUT] = float16_throughout(folders[FLOAT32], scratch / "throughout")
    results: dict[str, Any] = {"precisions": measure(folders, hidden)}
    if name in _GOLDEN:
        results["stop_decisions"] = stop_decisions(_GOLDEN[name], scratch)
        print(name, results["stop_decisions"], flush=True)
    return results


def parser() -> argparse.ArgumentParser:
    result = bundles_parser(__doc__.splitlines()[0])
    result.add_argument("--commit", help="what is measured, where git cannot tell: a copy")
    return result


def _run(arguments: argparse.Namespace) -> int:
    check_result(arguments.out)
    results = {}
    for name, bundle in dict(arguments.bundles).items():
        scratch = Path(tempfile.mkdtemp(prefix="precision-"))
        try:
            hidden = spoken(bundle, SPOKEN[name]) if name in SPOKEN else None
            results[name] = _of_bundle(name, bundle, hidden, scratch)
        finally:
            shutil.rmtree(scratch)
    described = {
        **provenance("onnxruntime-gpu", "torch"),
        "gpu": describe_cuda(),
        "steps": STEPS,
        "results": results,
    }
    described["commit"] = arguments.commit or described["commit"]
    write_result(arguments.out, described, printed=False)
    return 0


if __name__ == "__main__":
    sys.exit(
        exit_status(
            lambda: _run(parser().parse_args()), "precision", interrupted="precision: interrupted"
        )
    )
