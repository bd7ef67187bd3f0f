"""Which components' weights each graph of the contract uses. Light: the preflight asks it too."""

from __future__ import annotations

from trt_runtime.contract import TAIL, GraphSpec


def weight_components(spec: GraphSpec) -> tuple[str, ...]:
    """Components of the family tables whose parameters the graph of `spec` holds.

    A graph's own component, but for the tail, which is made of the weights of two others.
    """
    return ("flow", "flow_advance") if spec.name == TAIL else (spec.component,)
