"""From a model's sizes and the export options to the geometry that all graphs share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from export.sizes import ModelSizes
from trt_runtime.errors import UserError
from trt_runtime.geometry import Geometry

#: Euler steps of the reference's speech loop; its generate() offers no other number.
SOLVER_STEPS = 10

#: Latents that a call of the audio encoder makes. More would round short references up further;
#: fewer would read the weights more often (16 are 1.3 s of sound in the released models).
ENCODER_LATENTS = 16


@dataclass(frozen=True)
class ExportOptions:
    """What a bundle can hold at most.

    cache_length: prompt tokens and steps together. max_steps: patches of one request.
    prefill_chunks: tokens a prefill call takes; each divides the next and the last cache_length.
    max_reference_latents: latents of one reference wave (12.5 a second in the released models), or
    of all of a dialogue's together; rounded up to whole calls of the encoder.
    """

    cache_length: int = 2048
    max_steps: int = 400
    prefill_chunks: tuple[int, ...] = (16, 64)
    max_reference_latents: int = 1024

    def __post_init__(self) -> None:
        for name in ("cache_length", "max_steps", "max_reference_latents"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 20:
                raise UserError(
                    f"The export option {name} cannot be used",
                    expected="a whole number from 1 to 1048576",
                    found=repr(value),
                    do=f"leave it out for {getattr(ExportOptions, name)}",
                )
        chain = (*self.prefill_chunks, self.cache_length)
        large_enough = bool(self.prefill_chunks) and min(self.prefill_chunks) >= 2
        if not large_enough or any(
            small >= large or large % small for small, large in pairwise(chain)
        ):
            raise UserError(
                "The export option prefill_chunks cannot be used",
                expected="increasing sizes from 2, each dividing the next, the last cache_length "
                f"({self.cache_length})",
                found=str(self.prefill_chunks) if self.prefill_chunks else "none",
                do="choose for instance --prefill-chunks 16,64 --cache-length 2048",
            )


def geometry_of(sizes: ModelSizes, options: ExportOptions) -> Geometry:
    """The geometry of a bundle of a model of `sizes`; UserError where no graph could have it."""
    audio, talker = sizes.audio, sizes.talker
    lookahead = audio.frames_per_latent // 2
    frames = lookahead + sizes.patch * audio.frames_per_latent
    # A last partial call may reach one patch past the step limit.
    longest = (options.max_steps + 1) * sizes.patch * audio.frames_per_latent
    calls = -(-options.max_reference_latents // ENCODER_LATENTS)
    reference = calls * ENCODER_LATENTS
    try:
        return Geometry(
            sample_rate=audio.sample_rate,
            hop_length=audio.hop_length,
            n_fft=audio.n_fft,
            frames_per_latent=audio.frames_per_latent,
            latent_dim=audio.latent_dim,
            patch=sizes.patch,
            history=sizes.history,
            solver_steps=SOLVER_STEPS,
            talker_hidden=talker.hidden,
            talker_layers=talker.layers,
            talker_kv_heads=talker.kv_heads,
            talker_head_dim=talker.head_dim,
            vocab_size=talker.vocab_size,
            speaker_dim=sizes.speaker_dim,
            cache_length=options.cache_length,
            prefill_chunks=options.prefill_chunks,
            max_steps=options.max_steps,
            decoder_hidden=audio.decoder.hidden,
            decoder_kv_heads=audio.decoder.kv_heads,
            decoder_head_dim=audio.decoder.head_dim,
            # A ring must hold a query's window and every frame that a call writes.
            decoder_cache_lengths=tuple(
                longest if window is None else min(longest, window + frames)
                for window in audio.decoder.window
            ),
            encoder_hop=audio.encoder_hop,
            encoder_latents=ENCODER_LATENTS,
            encoder_kv_heads=audio.encoder.kv_heads,
            encoder_head_dim=audio.encoder.head_dim,
            encoder_frame_cache_lengths=_rings(
                audio.encoder.window[: audio.encoder_layers_run], audio.frames_per_latent, calls
            ),
            encoder_latent_cache_lengths=()
            if audio.latent_aggregator is None
            else _rings(audio.latent_aggregator.window, audio.frames_per_latent + 1, calls),
            max_reference_latents=reference,
        )
    except ValueError as error:
        raise UserError(
            "The sizes of config.json and the export options do not go together",
            expected="sizes that the graphs can have",
            found=str(error),
            do="check config.json, or choose other values of --cache-length and --max-steps",
        ) from error


def _rings(windows: tuple[int | None, ...], rows_per_latent: int, calls: int) -> tuple[int, ...]:
    """Cache lengths of an encoder stack that reads `rows_per_latent` rows for each latent."""
    rows = ENCODER_LATENTS * rows_per_latent
    return tuple(
        calls * rows if window is None else min(calls * rows, window + rows) for window in windows
    )
