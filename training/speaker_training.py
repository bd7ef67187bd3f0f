"""Training the speaker encoder: crops of recordings, clean and spoilt, told apart by voice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.speaker_network import SpeakerNetwork
from trt_runtime.contract import SPEAKER_DIM
from trt_runtime.resampling import resample
from trt_runtime.speaker_features import SAMPLE_RATE, filter_bank

#: Additive-margin softmax (Wang et al. 2018, arXiv:1801.05599).
_SCALE, _MARGIN = 24.0, 0.2
_BATCH, _PEAK, _WARM_UP = 40, 2e-3, 50
#: Frames of a crop, 0.7 to 4 s, most of them short; a recording has at least the longest.
_SHORTEST, _LONGEST = 70, 400
_RECORDING_SAMPLES = int(4.1 * SAMPLE_RATE)

Waves = Mapping[str, Sequence[np.ndarray]]


def train_speaker_encoder(
    voices: Waves, *, steps: int, seed: int, log: Callable[[str], None], batch: int = _BATCH
) -> tuple[SpeakerNetwork, list[float]]:
    """The network, and the loss of each step.

    voices: of each name, waves (samples,) float32 at 16 kHz, full scale 1, at least 4.1 s in all.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = (np.random.default_rng((seed, voice)) for voice in range(len(voices)))
    heard = list(map(_heard, voices.values(), draws))
    log(f"{len(heard)} voices, {sum(map(len, heard))} recordings")
    network = SpeakerNetwork(generator)
    centres = nn.Parameter(torch.randn(len(heard), SPEAKER_DIM, generator=generator))
    optimizer = torch.optim.AdamW([*network.parameters(), centres], _PEAK, weight_decay=0.01)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            falling = 0.5 * (1 + math.cos(math.pi * step / steps))
            group["lr"] = _PEAK * min((step + 1) / _WARM_UP, falling)
        features, labels = _crops(heard, batch, generator)
        cosines = F.normalize(network(features)) @ F.normalize(centres).T
        margins = _MARGIN * F.one_hot(labels, len(heard))
        loss = F.cross_entropy(_SCALE * (cosines - margins), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            right = (cosines.argmax(1) == labels).float().mean().item()
            log(f"step {step + 1} loss {np.mean(losses[-50:]):.3f} right {right:.2f}")
    return network, losses


def _heard(waves: Sequence[np.ndarray], draw: np.random.Generator) -> list[Tensor]:
    """Each recording clean, noisy and low-passed too, at any level: (frames, 80) float16 each.

    The mean over time is still in: it is that of a crop which the runtime takes away.
    """
    variants = []
    for wave in _recordings(waves):
        noisy = degraded(wave, SAMPLE_RATE, draw.uniform(10, 45), draw)
        rate = int(draw.choice((8_000, 10_000, 12_000)))
        narrow = degraded(wave, rate, draw.uniform(10, 45), draw)
        for one in (wave, noisy, narrow):
            gain = np.float32(10 ** (draw.uniform(-26, 6) / 20))
            variants.append(torch.from_numpy(filter_bank(one * gain)).half())
    return variants


def _recordings(waves: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The waves joined to recordings that every crop fits in."""
    recordings, parts = [], []
    for wave in waves:
        parts.append(wave)
        if sum(map(len, parts)) >= _RECORDING_SAMPLES:
            recordings.append(np.concatenate(parts))
            parts = []
    return recordings


def degraded(wave: np.ndarray, rate: int, ratio: float, draw: np.random.Generator) -> np.ndarray:
    """(samples,) float32 at 16 kHz: what is left at `rate` Hz, and white noise `ratio` dB below."""
    narrow = resample(resample(wave, SAMPLE_RATE, rate), rate, SAMPLE_RATE)[: len(wave)]
    deviation = np.sqrt(np.mean(np.square(narrow))) * 10 ** (-ratio / 20)
    return narrow + np.float32(deviation) * draw.standard_normal(len(narrow), np.float32)


def _crops(heard: list[list[Tensor]], batch: int, generator: torch.Generator) -> list[Tensor]:
    """Features as the runtime's of a crop: (batch, frames, 80) float32; their voices (batch,)."""

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    frames = drawn(_SHORTEST, drawn(_SHORTEST, _LONGEST) + 2)
    order = torch.randperm(len(heard), generator=generator)
    labels = order.repeat(-(-batch // len(heard)))[:batch]
    crops = []
    for label in labels.tolist():
        recording = heard[label][drawn(0, len(heard[label]))]
        crops.append(recording[drawn(0, len(recording) - frames + 1) :][:frames])
    features = torch.stack(crops).float()
    return [features - features.mean(1, keepdim=True), labels]
