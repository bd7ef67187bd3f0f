"""The plugin operators: nodes of our own domain, what they mean, and what a backend may assume.

A graph of a bundle holds such a node where some backend has a fast kernel for it, and beside it the
operator as an ONNX function of plain operators, which every backend can run. A builder may replace
the node; every implementation is held to the same test (`tests/operators`).

MixtureOfExperts(x, router_logits, gate_up, down; chosen, normalized) -> y

    x             (..., hidden) float32; the rows are all its leading axes together
    router_logits (rows, experts) float32
    gate_up       (experts, 2 * intermediate, hidden) float32; of each expert row 2i makes the
                  gate's value i and row 2i + 1 the up projection's, as ONNX Runtime's kernel reads
    down          (experts, hidden, intermediate) float32
    chosen        experts a row, 1 to `experts`
    normalized    1: the weights of the chosen are divided by their sum
    y             as x

    p = softmax(router_logits); e_1 ... e_k = the `chosen` largest of p, w_j = p[e_j], and with
    `normalized` w_j / sum(w); y = sum over j of w_j down[e_j] (silu(gate) * up), where gate and up
    are the even and the odd values of gate_up[e_j] x (Shazeer et al. 2017, arXiv:1701.06538;
    SwiGLU: Shazeer 2020, arXiv:2002.05202).

CachedAttention(qkv, position, inverse_frequencies, key_cache, value_cache;
                heads, kv_heads, window) -> (attended, key_cache_next, value_cache_next)

    qkv           (slots, tokens, (heads + 2 * kv_heads) * head_dim) float32; of each row the
                  queries, then the keys, then the values, head by head
    position      (slots,) int64, that of each slot's first token: 0 to length - tokens
    inverse_frequencies (head_dim / 2,) float32
    caches        (slots, kv_heads, length, head_dim) float32; the entry of position p is row p
    window        entries before its own that a query sees; the caches' length or more: all
    attended      (slots, tokens, heads * head_dim) float32
    caches, next  the caches with the new keys, rotated, and values from `position` on; what they
                  hold beyond is anything; a backend may write them in place

    Queries and keys are turned by the angles position * inverse_frequencies, value i of a head with
    value i + head_dim / 2 (Su et al. 2021, arXiv:2104.09864). Query head h attends, with softmax of
    q k / sqrt(head_dim), to its own entry and the `window` before it of key head
    h * kv_heads // heads (Ainslie et al. 2023, arXiv:2305.13245). What the caches hold beyond is
    never seen: finite, it changes nothing.
"""

from __future__ import annotations

DOMAIN = "ming_trt"
#: Where a bundle's nodes keep the line of the exporter's source that made them.
SOURCE_KEY = "ming_trt.source"
VERSION = 1

MIXTURE_OF_EXPERTS = "MixtureOfExperts"
CACHED_ATTENTION = "CachedAttention"
