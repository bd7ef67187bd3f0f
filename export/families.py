"""The table of model families, and which one a config.json belongs to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from export.config_keys import MING_OMNI_TTS, MING_OMNI_TTS_MOE, KnownKeys
from export.dense_family import dense_components, dense_unused
from export.moe_family import MOE_LAYOUTS, moe_unused
from export.moe_sizes import read_moe_sizes
from export.parameters import Layout, Parameter, UnusedTensor
from export.sizes import ModelSizes, read_sizes
from trt_runtime.errors import UserError


@dataclass(frozen=True)
class Family:
    """One row: how a config is recognised, what it may say, and what its tensors are for.

    `recognises(config)` looks at names only, so that a damaged config of the family is still told
    what is wrong with it. `sizes` raises UserError; `unused` is pure. `layouts` are the ways in
    which it is stored, the released one first. `control_tokens` are what its prompt grammar needs
    of the tokenizer.
    """

    name: str
    model_type: str
    sections: tuple[str, ...]
    known_keys: KnownKeys
    sizes: Callable[[Mapping[str, Any]], ModelSizes]
    layouts: tuple[Layout, ...]
    unused: Callable[[ModelSizes], tuple[UnusedTensor, ...]]
    control_tokens: tuple[str, ...]

    def recognises(self, config: Mapping[str, Any]) -> bool:
        return config.get("model_type") == self.model_type and all(
            isinstance(config.get(section), Mapping) for section in self.sections
        )

    def components(self, sizes: ModelSizes) -> tuple[Parameter, ...]:
        """Every parameter with the tensors of the released layout, component after component."""
        return self.layouts[0].components(sizes)

    def layout_of(self, sizes: ModelSizes, names: Collection[str]) -> Layout:
        """The layout of which a checkpoint with tensors `names` holds the largest share.

        Tensors that every layout has do not count; without any other it is the released one.
        """
        if len(self.layouts) == 1:
            return self.layouts[0]
        tables = [
            {name for row in layout.components(sizes) for name in row.sources}
            for layout in self.layouts
        ]
        shared = set.intersection(*tables)
        shares = [
            sum(name in names for name in table - shared) / max(len(table - shared), 1)
            for table in tables
        ]
        return self.layouts[shares.index(max(shares))]

    def component_names(self, sizes: ModelSizes) -> tuple[str, ...]:
        """Components in the order of the table."""
        return tuple(dict.fromkeys(parameter.component for parameter in self.components(sizes)))


FAMILIES: tuple[Family, ...] = (
    Family(
        name="ming-omni-tts-dense",
        model_type="dense",
        sections=("llm_config", "audio_tokenizer_config", "ditar_config", "aggregator_config"),
        known_keys=MING_OMNI_TTS,
        sizes=read_sizes,
        layouts=(Layout("as released", dense_components),),
        unused=dense_unused,
        control_tokens=(
            "<audio>",
            "<audioPatch>",
            "<|im_start|>",
            "<|im_end|>",
            "<|endoftext|>",
            "<|vision_start|>",
            "<|vision_pad|>",
            "<|vision_end|>",
        ),
    ),
    Family(
        name="ming-omni-tts-moe",
        model_type="bailingmm",
        sections=("llm_config", "audio_tokenizer_config", "ditar_config", "aggregator_config"),
        known_keys=MING_OMNI_TTS_MOE,
        sizes=read_moe_sizes,
        layouts=MOE_LAYOUTS,
        unused=moe_unused,
        control_tokens=(
            "<audio>",
            "<audioPatch>",
            "<role>",
            "</role>",
            "<spk>",
            "</spk>",
            "<|endoftext|>",
        ),
    ),
)

#: Families that we can name but not export, by the model_type of the config or of its llm_config.
_KNOWN_UNSUPPORTED: Mapping[str, str] = {
    "lingv3_tts": "Ming-3.0-tts-tiny",
    "bailing_hybrid": "Ming-3.0-tts-tiny",
    "bailingmm_moe_v2_lite": "Ming-flash-omni",
    "bailing_moe_v2": "Ming-flash-omni",
}


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that `config` belongs to; raises UserError saying what it looks like instead."""
    for family in FAMILIES:
        if family.recognises(config):
            return family
    supported = ", ".join(f"{f.name} (model_type {f.model_type!r})" for f in FAMILIES)
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type == family.model_type:
            absent = [s for s in family.sections if not isinstance(config.get(s), Mapping)]
            raise UserError(
                f"config.json names the family {family.name} but lacks sections of it",
                expected=f"the JSON objects {', '.join(family.sections)}",
                found=f"no {', '.join(absent)}",
                do="download config.json again from the model's page",
            )
    raise UserError(
        "config.json is of a model that this version cannot export",
        expected=supported,
        found=_looks_like(config),
        do="use a checkpoint of a supported family",
    )


def _looks_like(config: Mapping[str, Any]) -> str:
    llm = config.get("llm_config")
    inner = llm.get("model_type") if isinstance(llm, Mapping) else None
    model_type = config.get("model_type")
    known = next(
        (
            _KNOWN_UNSUPPORTED[kind]
            for kind in (model_type, inner)
            if isinstance(kind, str) and kind in _KNOWN_UNSUPPORTED
        ),
        None,
    )
    said = f"model_type {model_type!r}" if "model_type" in config else "no model_type"
    if isinstance(inner, str):
        said += f", llm_config.model_type {inner!r}"
    return f"{said}; it looks like {known}" if known else f"{said}, an unknown architecture"


def unknown_keys(config: Mapping[str, Any], known: KnownKeys) -> Iterator[str]:
    """Dotted names of the keys of `config` that `known` lacks."""
    yield from _unknown(config, known, "")


def _unknown(config: Mapping[str, Any], known: KnownKeys, prefix: str) -> Iterator[str]:
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        if key not in known:
            yield dotted
            continue
        inner = known[key]
        if inner is not None and isinstance(value, Mapping):
            yield from _unknown(value, inner, f"{dotted}.")
