"""The loop of both sides with shared noise: how they part, step by step, and how that sounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.comparison.inputs import GUIDANCE, NOISE_SCALE, Feed
from engines.comparison.probes import Outputs
from engines.comparison.sides import Side
from engines.comparison.spoken_prompts import without_padding
from trt_runtime.audio_decoder import AudioDecoder
from trt_runtime.batch import Batch
from trt_runtime.errors import UserError
from trt_runtime.loop import STOP_THRESHOLD
from trt_runtime.noise import SeededNoise
from trt_runtime.prompt_embedding import embed_tokens

#: Requests that part from each other in the loop, and those that are one request many times.
LOOP_SLOTS, ROWS = 2, 4
#: Steps that equal rows of a batch run together.
ROW_STEPS = 8


@dataclass(frozen=True)
class Drift:
    """latents: of each step the largest patch error of a slot. a_stops, b_stops: (steps, slots).

    first_difference: the first step, from 1, at which the sides decide otherwise; 0 for none.
    """

    latents: list[float]
    a_stops: np.ndarray
    b_stops: np.ndarray
    agreement: float
    first_difference: int

    @classmethod
    def of(cls, a: Outputs, b: Outputs) -> Drift:
        error = np.linalg.norm((b["latents"] - a["latents"]).astype(np.float64), axis=(2, 3))
        scale = np.maximum(np.linalg.norm(a["latents"].astype(np.float64), axis=(2, 3)), 1e-300)
        decided = [side["stop_probabilities"] > STOP_THRESHOLD for side in (a, b)]
        different = (decided[0] != decided[1]).any(1)
        return cls(
            latents=[float(value) for value in (error / scale).max(1)],
            a_stops=a["stop_probabilities"],
            b_stops=b["stop_probabilities"],
            agreement=float((decided[0] == decided[1]).mean()),
            first_difference=int(different.argmax()) + 1 if different.any() else 0,
        )


def check_steps(sides: tuple[Side, Side], tokens: int, steps: int) -> None:
    """Raises UserError where the loop would run past what a side's folder holds."""
    for side in sides:
        g = side.geometry
        most = min(g.max_steps, g.cache_length - tokens)
        if not 1 <= steps <= most:
            raise UserError(
                f"The loop cannot run {steps} steps",
                expected=f"1 to {most}: what {side.path} holds beside a prompt of {tokens} tokens",
                found=str(steps),
                do="choose fewer with --steps, or export with a larger --cache-length",
            )


def run_loop(side: Side, feed: Feed) -> Outputs:
    """latents (steps, slots, patch, latent_dim), stops, audio (slots, samples), and equal rows.

    Each slot its own prompt and noise; nobody stops. `stops` are decisions, `stop_probabilities`
    what they are made of, both (steps, slots). `rows`: latents and hidden states of one request in
    every row of a batch, (steps, rows, numbers).
    """
    seed, steps = int(feed["seed"]), int(feed["steps"])
    ids = feed["token_ids"][:LOOP_SLOTS]
    latents, stops, _ = _steps(side, ids, [seed + slot for slot in range(len(ids))], steps)
    waves = [_audio(side, latents[:, slot]) for slot in range(len(ids))]
    same = np.repeat(ids[:1], ROWS, axis=0)
    rows, _, hidden = _steps(side, same, [seed] * ROWS, min(ROW_STEPS, steps))
    return {
        "latents": latents,
        "stops": (stops > STOP_THRESHOLD).astype(np.float32),
        "stop_probabilities": stops,
        "audio": np.stack(waves),
        "rows": np.concatenate((rows.reshape(*rows.shape[:2], -1), hidden), axis=2),
    }


def _steps(
    side: Side, ids: np.ndarray, seeds: list[int], steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Latents, stop probabilities and hidden states of a batch, (steps, slots, ...) each."""
    g = side.geometry
    batch = Batch(side.backend, g, len(ids))
    noise = [SeededNoise(seed, g.patch, g.latent_dim, g.solver_steps) for seed in seeds]
    history = np.zeros((g.history, g.latent_dim), np.float32)
    slots = [batch.join(guidance=GUIDANCE, noise_scale=NOISE_SCALE, history=history) for _ in seeds]
    for slot, row in zip(slots, ids, strict=True):
        slot.prefill(embed_tokens(side.backend, g, without_padding(row)))
    latents, stops, hidden = [], [], []
    for step in range(steps):
        for slot, source in zip(slots, noise, strict=True):
            slot.draw(source.initial(step), source.diffusion(step))
        batch.step()
        latents.append([slot.patch.copy() for slot in slots])
        stops.append([slot.stop_probability for slot in slots])
        hidden.append([slot.hidden.copy() for slot in slots])
    return np.array(latents), np.array(stops, np.float32), np.array(hidden)


def _audio(side: Side, patches: np.ndarray) -> np.ndarray:
    decoder = AudioDecoder(side.backend, side.geometry)
    last = len(patches) - 1
    parts = [decoder.decode(patch, last=step == last) for step, patch in enumerate(patches)]
    return np.concatenate(parts)


def first_rows(rows: np.ndarray) -> np.ndarray:
    """What :func:`run_loop`'s `rows` must be: the first row in every row."""
    return np.broadcast_to(rows[:, :1], rows.shape)
