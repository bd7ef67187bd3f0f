"""Which components' weights each graph of the contract uses. Light: the preflight asks it too."""

from __future__ import annotations

from trt_runtime.contract import LANGUAGE_HEAD, TAIL, GraphSpec

#: Graphs made of other components' weights; every other graph uses those of its own component.
_SHARED = {
    TAIL: ("flow", "flow_advance"),
    # Its own table, which a family with tied embeddings does not have.
    LANGUAGE_HEAD: ("language_head", "prompt_embedding"),
}


def weight_components(spec: GraphSpec) -> tuple[str, ...]:
    """Components of the family tables among whose parameters those of the graph of `spec` are."""
    return _SHARED.get(spec.name, (spec.component,))
