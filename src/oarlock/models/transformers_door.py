"""FlashMask for the models of Hugging Face transformers: ``attn_implementation="oarlock_flashmask"``.

    from oarlock.models import transformers_door
    transformers_door.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="oarlock_flashmask")

transformers describes a mask by a function of two indices. The functions that it builds itself (causal, window, chunks,
packed documents, padding) are read off and turned into columns in O(S); any other is evaluated pair by pair, once per
forward pass. What no column mask holds is an error, never another mask.

Legend: B batch, Sq query rows, Sk keys, H heads, D head dim; row i and key j stand at i + q_offset and j + kv_offset.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from oarlock.attention import ColumnMask, flashmask_attention
from oarlock.attention.intervals import Intervals, fit, from_visible, merge

NAME = "oarlock_flashmask"
_COLUMNS_AT_ONCE = 512


def register(name: str = NAME) -> str:
    """Makes ``attn_implementation=name`` known to transformers; returns the name.

    Raises:
        ImportError: transformers is absent, or too old to take attentions with masks of their own.
    """
    try:
        transformers = importlib.import_module("transformers")
        attentions, masks = transformers.AttentionInterface, transformers.AttentionMaskInterface
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{NAME} needs transformers with AttentionMaskInterface (pip install 'transformers>=4.57'): {error}"
        ) from error
    attentions.register(name, attention)
    masks.register(name, column_mask)
    _registered.add(name)
    _deny_hub_kernel()
    return name


_registered: set[str] = set()


def _deny_hub_kernel() -> None:
    """Corrects transformers' guess that a name with "flash" in it is a FlashAttention kernel to fetch from its hub.

    The guess would also refuse chunked models and static caches. Only the answer for our names changes.
    """
    original = getattr(importlib.import_module("transformers.utils.generic"), "is_flash_attention_requested", None)
    if original is None or getattr(original, "knows_oarlock", False):
        return
    guess = original

    @functools.wraps(guess)
    def is_flash_attention_requested(
        config: Any = None, requested_attention_implementation: str | None = None, **options: Any
    ) -> bool:
        name = config._attn_implementation if config is not None else requested_attention_implementation
        return name not in _registered and guess(config, requested_attention_implementation, **options)

    vars(is_flash_attention_requested)["knows_oarlock"] = True
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("transformers") and vars(module).get("is_flash_attention_requested") is guess:
            vars(module)["is_flash_attention_requested"] = is_flash_attention_requested


# ---- the mask, once per forward pass ---------------------------------------------------------------------------------


def column_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | ColumnMask | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> ColumnMask:
    """The mask that transformers asks for; its arguments are those of transformers' ``sdpa_mask``.

    A mask that generation prepared ahead comes back as it is.

    Raises:
        ValueError: no column mask holds it.
    """
    if isinstance(attention_mask, ColumnMask):
        return attention_mask
    if mask_function is None:
        raise ValueError(f"{NAME} got no mask_function from transformers; update transformers")
    frame = _Frame(batch_size, q_length, kv_length, int(q_offset), kv_offset, torch.device(device))
    intervals = _read(mask_function, frame)
    if intervals is None:
        intervals = _evaluate(mask_function, frame)
    begin, end = intervals
    if attention_mask is not None:
        hidden_BK = ~_padding(attention_mask, kv_length, kv_offset)
        begin = torch.cat([begin, torch.zeros_like(begin[..., :1])], dim=-1)
        end = torch.cat([end, (hidden_BK[:, None] * q_length)[..., None]], dim=-1)
    bounds, causal = fit(merge(begin, end, q_length), f"the mask that this model asks of {NAME}")
    return (_Mask if attention_mask is None else _PaddedMask)(bounds, causal, q_length)


class _Mask(ColumnMask):
    """A mask of transformers; it asks its masks for the number of their dimensions."""

    ndim = 4


class _PaddedMask(_Mask):
    """A mask that came with an attention_mask, which is then the user's word on what is visible."""


def _padding(attention_mask: Tensor, kv_length: int, kv_offset: int) -> Tensor:
    """bool [B, Sk]; transformers' mask may be shorter than a static cache."""
    keep = attention_mask.bool()
    missing = kv_length + kv_offset - keep.shape[-1]
    if missing > 0:
        keep = torch.nn.functional.pad(keep, (0, missing))
    return keep[:, kv_offset : kv_offset + kv_length]


class _Frame:
    """Sizes and offsets of a mask."""

    def __init__(self, batch: int, rows: int, keys: int, q_offset: int, kv_offset: int, device: torch.device) -> None:
        self.batch, self.rows, self.keys, self.device = batch, rows, keys, device
        self.q_offset, self.kv_offset = q_offset, kv_offset
        self.position_K = torch.arange(keys, device=device) + kv_offset
        """Position of each key; minus ``q_offset`` it is the row that stands there."""


def _read(mask_function: Callable[..., Any], frame: _Frame) -> tuple[Tensor, Tensor] | None:
    """Hidden intervals [B, 1, Sk, R] of a function that transformers built; None for any other."""
    upper = torch.zeros(frame.batch, frame.keys, dtype=torch.int64, device=frame.device)
    lower = torch.full_like(upper, frame.rows)
    own_row = frame.position_K - frame.q_offset
    for kind, values, positions in _conjunction(mask_function, None):
        if positions is not None and kind == "chunked_overlay.<locals>.inner_mask":
            # Positions begin anew in each document, and so do the chunks.
            position = positions[:, frame.kv_offset : frame.kv_offset + frame.keys].expand(frame.batch, -1)
        else:
            position = frame.position_K.expand(frame.batch, -1)
        origin = own_row - position  # the row of position 0
        match kind:
            case "bidirectional_mask_function":
                pass
            case "causal_mask_function":
                upper = torch.maximum(upper, own_row)
            case "sliding_window_overlay.<locals>.inner_mask":
                lower = torch.minimum(lower, own_row + values["sliding_window"])
            case "sliding_window_bidirectional_overlay.<locals>.inner_mask":
                lower = torch.minimum(lower, own_row + values["sliding_window"] + 1)
                upper = torch.maximum(upper, own_row - values["sliding_window"])
            case "chunked_overlay.<locals>.inner_mask":
                chunk, skipped = values["chunk_size"], values["left_padding"].long()[:, None]
                begin = torch.div(position - skipped, chunk, rounding_mode="floor") * chunk + skipped + origin
                lower, upper = torch.minimum(lower, begin + chunk), torch.maximum(upper, begin)
            case "packed_sequence_mask_function.<locals>.inner_mask":
                begin, end = _runs(values["packed_sequence_mask"].expand(frame.batch, -1))
                lower, upper = torch.minimum(lower, end), torch.maximum(upper, begin)
            case _:
                return None
    rows = torch.full_like(lower, frame.rows)
    begin = torch.stack([torch.zeros_like(upper), lower], dim=-1)[:, None]
    return begin, torch.stack([upper, rows], dim=-1)[:, None]


def _conjunction(
    function: Callable[..., Any], positions: Tensor | None
) -> Iterator[tuple[str, dict[str, Any], Tensor | None]]:
    """The parts of nested ``and_masks`` by name, with their captured values and the positions they are applied to."""
    if getattr(function, "__module__", "") != "transformers.masking_utils" or not inspect.isfunction(function):
        yield "unknown", {}, None
        return
    values = dict(inspect.getclosurevars(function).nonlocals)
    if function.__qualname__ == "and_masks.<locals>.and_mask":
        for part in values["mask_functions"]:
            yield from _conjunction(part, positions)
    elif function.__qualname__ == "remap_positions_for_packed_sequence.<locals>.inner_mask":
        yield from _conjunction(values["mask_function"], values["position_ids"])
    else:
        yield function.__qualname__, values, positions


def _runs(ids_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Begin and end of the run of equal numbers that each entry lies in."""
    seqlen = ids_BS.shape[1]
    index = torch.arange(seqlen, device=ids_BS.device)
    change = ids_BS.diff(dim=1) != 0
    edge = torch.ones_like(ids_BS[:, :1], dtype=torch.bool)
    begin = torch.where(torch.cat([edge, change], 1), index, 0).cummax(1).values
    last = torch.where(torch.cat([change, edge], 1), index, seqlen).flip(1).cummin(1).values.flip(1)
    return begin, last + 1


def _evaluate(mask_function: Callable[..., Any], frame: _Frame) -> tuple[Tensor, Tensor]:
    """Hidden intervals of any function, pair by pair, a few columns at a time."""
    batch = torch.arange(frame.batch, device=frame.device)
    head = torch.zeros(1, dtype=torch.int64, device=frame.device)
    row = torch.arange(frame.rows, device=frame.device) + frame.q_offset
    function = mask_function
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=dims, out_dims=0)
    parts: list[Intervals] = []
    for keys in frame.position_K.split(_COLUMNS_AT_ONCE):
        parts.append(from_visible(function(batch, head, row, keys)))
    width = max((part.begin.shape[-1] for part in parts), default=1)
    shape = (frame.batch, 1, 0, width)
    empty = torch.zeros(shape, dtype=torch.int64, device=frame.device)

    def joined(name: str) -> Tensor:
        columns = [getattr(part, name) for part in parts]
        columns = [torch.nn.functional.pad(x, (0, width - x.shape[-1]), value=frame.rows) for x in columns]
        return torch.cat([empty, *columns], dim=2)

    return joined("begin"), joined("end")


# ---- the attention, in every layer -----------------------------------------------------------------------------------

_UNSUPPORTED = {
    "softcap": "caps its logits (softcap)",
    "position_bias": "adds a bias to its logits (position_bias)",
    "head_mask": "masks heads (head_mask)",
}


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: ColumnMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface on [B, H, S, D] tensors; returns out [B, Sq, H, Dv] and no weights.

    Raises:
        ValueError: something that this attention does not compute, or a causal layer without a mask.
    """
    for argument, what in _UNSUPPORTED.items():
        if options.get(argument) is not None:
            raise ValueError(f'{NAME}: {type(module).__name__} {what}; load it with attn_implementation="eager"')
    if options.get("output_attentions"):
        raise ValueError(f'{NAME} has no attention weights to return; use attn_implementation="eager" for them')
    mask = _mask_of(module, attention_mask, is_causal)
    if mask is not None and query.shape[2] == key.shape[2] > 1:
        mask = _with_documents(mask, position_ids, cu_seq_lens_q)
    q_BSHD, k_BSHD, v_BSHD = (x.transpose(1, 2) for x in (query, key, value))
    out = flashmask_attention(
        q_BSHD,
        k_BSHD,
        v_BSHD,
        mask,
        dropout=dropout,
        softmax_scale=scaling,
        learnable_sink=s_aux,
    )
    assert isinstance(out, Tensor)
    return out, None


def _mask_of(module: torch.nn.Module, given: ColumnMask | Tensor | None, is_causal: bool | None) -> ColumnMask | None:
    if isinstance(given, ColumnMask):
        return given
    if given is None:
        if getattr(module, "is_causal", True) if is_causal is None else is_causal:
            raise ValueError(
                f"{NAME}: no mask arrived at the causal layer {type(module).__name__}; the model does not build its "
                "mask through transformers.masking_utils. Pass attention_mask as a ColumnMask or a 4-D bool tensor"
            )
        return None
    if given.dim() != 4:
        raise ValueError(f"{NAME}: attention_mask of {type(module).__name__} must be 4-D, got {list(given.shape)}")
    return _dense_mask(given)


_last_dense: list[tuple[Tensor, int, ColumnMask]] = []


def _dense_mask(given: Tensor) -> ColumnMask:
    """The columns of a 4-D mask; the layers of a model share the last one."""
    for tensor, version, mask in _last_dense:
        if tensor is given and version == given._version:
            return mask
    visible = given
    if given.dtype != torch.bool:
        visible = given == 0
        if bool((~visible & (given > torch.finfo(given.dtype).min / 2)).any()):
            raise ValueError(f"{NAME}: attention_mask holds biases other than 0 and -infinity")
    mask = ColumnMask.from_dense(visible)
    _last_dense[:] = [(given, given._version, mask)]
    return mask


def _with_documents(mask: ColumnMask, position_ids: Tensor | None, cu_seq_lens: Tensor | None) -> ColumnMask:
    """The mask inside packed documents only, where a batch is packed but its mask does not say so.

    transformers itself looks at position ids only without a cache and without an attention_mask.
    """
    if cu_seq_lens is not None:
        return mask.cached(("cu", *cu_seq_lens.tolist()), lambda: mask & ColumnMask.from_cu_seqlens(cu_seq_lens))
    if not isinstance(mask, _Mask) or isinstance(mask, _PaddedMask):
        return mask
    if position_ids is None or position_ids.dim() != 2 or position_ids.shape[1] != mask.seqlen_q:
        return mask

    def narrow() -> tuple[Tensor, ColumnMask]:
        is_packed = bool((position_ids.diff(dim=1) != 1).any())
        return position_ids, mask & ColumnMask.from_position_ids(position_ids) if is_packed else mask

    # Holding the tensor keeps its id from being used again.
    return mask.cached(("documents", id(position_ids)), narrow)[1]
