"""Stage 2: talker, aggregator, flow and stop head, in one loss over whole utterances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.modules.flow import Aggregator, Flow, StopHead
from export.modules.layers import parameter
from export.modules.transformer import CausalTransformer
from export.sizes import ModelSizes
from training.optimizer import Optimizer
from training.utterances import Utterances
from training.whole_sequence import aggregate, stack, start, velocity
from trt_runtime.geometry import Geometry

GUIDANCE_DROPOUT = 0.15
#: The share of times drawn from a logit-normal distribution; the others are uniform.
LOGIT_NORMAL = 0.7
#: Of the largest noise on the latents that the talker and the history see while training.
LATENT_NOISE = 0.3
PEAK_RATE = 1.0e-3
BETAS = (0.9, 0.98)
#: Weights of the losses: flow, phones, latents, stop.
WEIGHTS = (1.0, 0.5, 0.5, 0.3)
#: How much more the last patch counts in the loss of the stop head, where the others are many.
LAST_WEIGHT = 4.0


class Embeddings(nn.Module):
    """The table of text tokens."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.table = parameter(sizes.talker.vocab_size, sizes.talker.hidden)


class Projection(nn.Module):
    """Of a speaker embedding to the talker's input."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.weight = parameter(sizes.speaker_dim, sizes.talker.hidden)
        self.bias = parameter(sizes.talker.hidden)


class Guides(nn.Module):
    """Heads for training only: phones and latents of the next patch, from the hidden state."""

    def __init__(self, hidden: int, phones: int, frames: int, latents: int) -> None:
        super().__init__()
        self.frames = frames
        self.phones = nn.Linear(hidden, phones * frames)
        self.latents = nn.Linear(hidden, latents)


class Voice(nn.Module):
    """Everything of a checkpoint but the audio tokenizer, named as the exporter names it."""

    def __init__(self, sizes: ModelSizes, geometry: Geometry, phones: int) -> None:
        super().__init__()
        hidden = sizes.talker.hidden
        self.geometry = geometry
        self.prompt_embedding = Embeddings(sizes)
        self.speaker_projection = Projection(sizes)
        self.talker = CausalTransformer(sizes.talker, [geometry.cache_length] * sizes.talker.layers)
        self.flow = Flow(sizes.flow, geometry.latent_dim, hidden)
        self.aggregator = Aggregator(sizes.aggregator, geometry.latent_dim, hidden)
        self.stop_head = StopHead(hidden)
        frames = geometry.patch * geometry.frames_per_latent
        self.guides = Guides(hidden, phones, frames, geometry.patch * geometry.latent_dim)


def make_voice(sizes: ModelSizes, geometry: Geometry, phones: int, seed: int) -> Voice:
    """A voice of random values."""
    voice = Voice(sizes, geometry, phones)
    generator = torch.Generator().manual_seed(seed)
    for module in voice.children():
        start(module, generator)
    with torch.no_grad():
        for flow in (voice.flow, voice.aggregator):
            half = flow.inverse_frequencies.numel()
            flow.inverse_frequencies.copy_(10000.0 ** -(torch.arange(half) / half))
        voice.flow.final_weight.mul_(0.1)
        voice.prompt_embedding.table.mul_(25.0)
    return voice


@dataclass(frozen=True)
class Bucket:
    """Sizes of one captured step: utterances of at most so many prompt tokens and patches."""

    tokens: int
    patches: int
    batch: int
    flow_slots: int

    def takes(self, tokens: int, patches: int) -> bool:
        """Whether an utterance of so many prompt tokens and patches has room."""
        return tokens <= self.tokens and patches <= self.patches


@dataclass(frozen=True)
class _Batch:
    """One batch of utterances, drawn on the device. n utterances, P patches, L latents."""

    ids: Tensor  # (n, tokens) int64, left-aligned
    length: Tensor  # (n,)
    slot: Tensor  # (n,) position of the speaker slot, -1 for none
    speaker: Tensor  # (n, speaker_dim)
    steps: Tensor  # (n,) patches
    clean: Tensor  # (n, L, latent_dim)
    seen: Tensor  # the same with noise, as the talker and the history see them
    phones: Tensor  # (n, P, frames a patch) int64


def voice_step(
    voice: Voice,
    utterances: Utterances,
    bucket: Bucket,
    optimizer: Optimizer,
    generator: torch.Generator,
) -> Callable[[], Tensor]:
    """One step on utterances that `bucket` takes; returns the losses that :data:`WEIGHTS` weigh."""
    device = utterances.ids.device
    weights = torch.tensor(WEIGHTS, device=device)

    def step() -> Tensor:
        batch = _draw(utterances, voice.geometry, bucket, generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            losses = _losses(voice, batch, bucket, generator)
        optimizer.zero()
        (losses * weights).sum().backward()
        optimizer.step()
        return losses.detach()

    return step


def _draw(u: Utterances, g: Geometry, bucket: Bucket, generator: torch.Generator) -> _Batch:
    device, n = u.ids.device, bucket.batch

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, device=device, generator=generator)

    # `count` is on the device: utterances may be added between replays of a captured step.
    chosen = (draw(n) * u.count).long()
    steps, first, speakers = u.steps[chosen], u.first[chosen], u.speakers[chosen]
    latent = torch.arange(bucket.patches * g.patch, device=device)
    place = first.unsqueeze(-1) + torch.minimum(latent, steps.unsqueeze(-1) * g.patch - 1)
    clean = u.latents[place].float()
    noise = torch.randn(clean.shape, device=device, generator=generator)
    which = (draw(n) * u.embeddings.shape[1]).long()
    frames = g.patch * g.frames_per_latent
    frame = torch.arange(bucket.patches * frames, device=device)
    end = steps.unsqueeze(-1) * frames - 1
    spoken = u.phones[first.unsqueeze(-1) * g.frames_per_latent + torch.minimum(frame, end)]
    return _Batch(
        ids=u.ids[chosen, : bucket.tokens].long(),
        length=u.lengths[chosen],
        slot=u.slots[chosen],
        speaker=u.embeddings[speakers, which],
        steps=steps,
        clean=clean,
        seen=clean + LATENT_NOISE * draw(n, 1, 1) * noise,
        phones=spoken.long().view(n, bucket.patches, frames),
    )


def _losses(voice: Voice, b: _Batch, bucket: Bucket, generator: torch.Generator) -> Tensor:
    """Flow, phones, latents, stop: (4,) float32."""
    device, n = b.ids.device, bucket.batch
    patch = torch.arange(bucket.patches, device=device)
    valid = (patch < b.steps.unsqueeze(-1)).float()
    hidden = _hidden(voice, b, bucket)

    def mean(values: Tensor, weight: Tensor) -> Tensor:
        return (values.float() * weight).sum() / weight.sum()

    def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
        flat = nn.functional.cross_entropy(
            logits.float().flatten(0, -2), labels.flatten(), reduction="none"
        )
        return flat.view(labels.shape)

    last = (patch == b.steps.unsqueeze(-1) - 1).long()
    stop = cross_entropy(hidden @ voice.stop_head.weight + voice.stop_head.bias, last)
    phones = voice.guides.phones(hidden).unflatten(-1, (b.phones.shape[-1], -1))
    guess = voice.guides.latents(hidden).float() - b.clean.view(n, bucket.patches, -1)
    return torch.stack(
        (
            _flow_loss(voice, b, bucket, hidden, generator),
            mean(cross_entropy(phones, b.phones).mean(-1), valid),
            mean(guess.square().mean(-1), valid),
            mean(stop, valid * (1 + LAST_WEIGHT * last)),
        )
    )


def _hidden(voice: Voice, b: _Batch, bucket: Bucket) -> Tensor:
    """The hidden states that make each patch, (n, P, talker_hidden)."""
    g, device, n = voice.geometry, b.ids.device, bucket.batch
    total = bucket.tokens + bucket.patches - 1
    embedded = aggregate(voice.aggregator, b.seen.view(-1, g.patch, g.latent_dim))
    embedded = embedded.view(n, bucket.patches, -1)
    x = voice.prompt_embedding.table[b.ids]
    said = b.speaker @ voice.speaker_projection.weight + voice.speaker_projection.bias
    at_slot = torch.arange(bucket.tokens, device=device) == b.slot.unsqueeze(-1)
    x = torch.where(at_slot.unsqueeze(-1), said.unsqueeze(1).to(x.dtype), x)
    # Patch k is the talker's input k + 1 places behind the prompt's last token.
    place = torch.arange(total, device=device) - b.length.unsqueeze(-1)
    wide = (-1, -1, x.shape[-1])
    patches = embedded.gather(1, place.clamp(0, bucket.patches - 1).unsqueeze(-1).expand(wide))
    x = nn.functional.pad(x, (0, 0, 0, total - bucket.tokens))
    x = torch.where((place >= 0).unsqueeze(-1), patches.to(x.dtype), x)
    index = b.length.unsqueeze(-1) - 1 + torch.arange(bucket.patches, device=device)
    index = index.clamp(max=total - 1).unsqueeze(-1).expand(wide)
    return stack(voice.talker, x).gather(1, index)


def _flow_loss(
    voice: Voice, b: _Batch, bucket: Bucket, hidden: Tensor, generator: torch.Generator
) -> Tensor:
    """Of the velocity at random times, for some random patches of each utterance."""
    g, device, n = voice.geometry, b.ids.device, bucket.batch
    slots = bucket.flow_slots
    rows = n * slots

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, device=device, generator=generator)

    def taken(latents: Tensor, at: Tensor) -> Tensor:
        """latents: (n, L, latent_dim) at (n, slots, k), to (n * slots, k, latent_dim)."""
        flat = at.flatten(1).unsqueeze(-1).expand(-1, -1, g.latent_dim)
        return latents.gather(1, flat).view(rows, -1, g.latent_dim)

    chosen = (draw(n, slots) * b.steps.unsqueeze(-1)).long()
    first = chosen.unsqueeze(-1) * g.patch
    before = first + torch.arange(-g.history, 0, device=device)
    history = taken(b.seen, before.clamp(min=0)) * (before >= 0).view(rows, -1, 1)
    target = taken(b.clean, first + torch.arange(g.patch, device=device))
    noise = torch.randn(target.shape, device=device, generator=generator)
    normal = torch.randn(rows, device=device, generator=generator)
    time = torch.where(draw(rows) < LOGIT_NORMAL, torch.sigmoid(normal), draw(rows))
    guided = (draw(n, slots) > GUIDANCE_DROPOUT).float()
    condition = hidden.gather(1, chosen.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
    condition = (condition * guided.unsqueeze(-1)).flatten(0, 1)
    t = time.view(-1, 1, 1)
    made = velocity(voice.flow, (1 - t) * noise + t * target, time, condition, history)
    return (made.float() - (target - noise)).square().mean()
