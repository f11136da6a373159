"""The names of every family's weight files, as programs in the AOA language (docs/aoa.md).

`aoa/<model_type>.aoa` says how a Decoder's tensors are made of those of a Hugging Face folder. Each statement there can
be turned round: one name or one list per side, `stack` and `rearrange` as layout, casts that concern loading alone.
"""

import re
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from oarlock.checkpoint.aoa import AOA
from oarlock.checkpoint.aoa.names import Template
from oarlock.checkpoint.aoa.syntax import Name, Statement, Value
from oarlock.models.config import DecoderConfig
from oarlock.models.families import family

Direction = Literal["from_hf", "to_hf"]

_FOLDER = Path(__file__).with_name("aoa")
_HEAD = "lm_head.weight"
_UNUSED = (  # RoPE's frequencies in old files; they follow from the configuration
    "model.layers.$L.self_attn.rotary_emb.inv_freq -> _, optional",
    "model.rotary_emb.inv_freq -> _, optional",
)


def family_program(
    model_type: str, direction: Direction = "from_hf", *, num_experts: int = 0, dtype: torch.dtype | None = None
) -> str:
    """A program in the AOA language between the names of a family's weight files and a Decoder's.

    It fits any configuration of the family: a statement about tensors that a model may lack is `optional`.

    Args:
        model_type: the family.
        direction: "from_hf" = from a Hugging Face folder to a Decoder; "to_hf" = the reverse, derived from it.
        num_experts: how many tensors a stack of experts is written as. Only for "to_hf", and only where the names of
            the destination do not tell.
        dtype: cast all parameters to this one; router selection biases are float32 in a Decoder in any case. None
            casts nothing else. Only for "from_hf".

    Raises:
        ValueError: unknown model_type, or a dtype with "to_hf".
    """
    family(model_type)
    text = _text(model_type)
    if direction == "to_hf":
        if dtype is not None:
            raise ValueError(f"a program to_hf keeps all dtypes; got dtype={dtype}")
        return "\n".join(_reversed(statement, num_experts) for statement in AOA(text).statements) + "\n"
    if dtype is None:
        return text
    return "\n".join(_with_cast(statement, dtype) for statement in AOA(text).statements) + "\n"


def weights_program(
    config: DecoderConfig, direction: Direction = "from_hf", *, dtype: torch.dtype | None = None
) -> str:
    """`family_program` for one model: with its number of experts, and its head if that is no copy of the embedding.

    It fits every form of a model's tensors, so whole ones, DTensors and Shards are loaded by it, optimizer states
    (`slots=True`) by the same text:

        checkpoint.open_tensors(folder).load(model.state_dict(), aoa=models.weights_program(model.config))

    Args:
        config: the model.
        direction, dtype: see `family_program`.

    Raises:
        ValueError: a dtype with "to_hf".
    """
    lines = [family_program(config.model_type, direction, num_experts=config.num_experts, dtype=dtype)]
    if not config.tie_word_embeddings:
        cast = "" if dtype is None else f", dtype={_name(dtype)}"
        lines.append(f"{_HEAD} -> {_HEAD}{cast}\n")
    elif direction == "from_hf":
        lines.append(f"{_HEAD} -> _, optional  # the embedding once more\n")
    if direction == "from_hf":
        lines.append("\n".join(_UNUSED) + "\n")
    return "".join(lines)


@cache
def _text(model_type: str) -> str:
    return (_FOLDER / f"{model_type}.aoa").read_text(encoding="utf-8")


def _reversed(statement: Statement, num_experts: int) -> str:
    """The statement read from right to left."""
    layout = [(key, _turned(value)) for key, value in _attributes(statement) if key != "dtype"]
    source, target = _sides(statement)
    where = f" where * in 0:{num_experts}" if source.num_stars and num_experts else ""
    return _spelled(target, source, layout, statement.optional) + where


def _turned(value: Value) -> Value:
    """`a -> b` in a pattern as `b -> a`."""
    return " -> ".join(reversed(re.split(r"\s*->\s*", value))) if isinstance(value, str) else value


def _with_cast(statement: Statement, dtype: torch.dtype) -> str:
    """With a cast of what is read, before any of it is joined; a dtype that the statement names stays."""
    attributes = _attributes(statement)
    if "dtype" not in dict(attributes):
        attributes.insert(0, ("dtype", _name(dtype)))
    return _spelled(*_sides(statement), attributes, statement.optional)


def _sides(statement: Statement) -> tuple[Template, Template]:
    [operand], [target] = statement.operands, statement.targets
    assert isinstance(operand, Name)
    return operand.template, target.template


def _attributes(statement: Statement) -> list[tuple[str, Value]]:
    return [(attribute.key, attribute.value) for attribute in statement.attributes]


def _spelled(source: Template, target: Template, attributes: list[tuple[str, Value]], optional: bool) -> str:
    left, right = ("".join(map(str, template.parts)) for template in (source, target))
    words = [f'{key}="{value}"' if key == "rearrange" else f"{key}={value}" for key, value in attributes]
    return ", ".join([f"{left} -> {right}", *words, *(["optional"] if optional else [])])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
