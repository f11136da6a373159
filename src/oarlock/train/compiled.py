"""A run whose blocks are compiled: the cache around it, and what the first steps could not compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.attention import ColumnMask
from oarlock.compile import CompileCache, Report, Watch, compile_blocks, explain
from oarlock.compile.report import counted
from oarlock.models import Decoder
from oarlock.train.config import CompileConfig, TrainConfig

_WATCHED_STEPS = 2  # the second shows what compiles again


class CompiledBlocks:
    """Compiles the blocks of a decoder, which torch does when they are first called.

    Args:
        config: whether, with which cache, and how many graph breaks are allowed.
        model: of the run; its names stay.
        writes_cache: for one rank of several: all make the same.
        tell: called with lines for people.
    """

    def __init__(self, config: CompileConfig, model: Decoder, writes_cache: bool, tell: Callable[[str], None]) -> None:
        self._config, self._writes, self._tell = config, writes_cache, tell
        self._steps = 0
        self._watch = Watch()
        self._cache = CompileCache(config.cache, model, tell=self._say) if config.cache else None
        self._num_blocks = compile_blocks(model, model.layers, backend=config.backend)
        if self._cache is not None:
            self._cache.load()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step; after the first two it is told what became of them.

        Raises:
            TooManyBreaks: there were more graph breaks than `compile.max_breaks`.
        """
        watched = self._steps < _WATCHED_STEPS
        with self._watch if watched else nullcontext():
            yield
        if watched:
            self._steps += 1
            if self._steps == _WATCHED_STEPS:
                self.tell()

    def tell(self) -> None:
        """Say what was compiled, refuse too many breaks, and keep the code."""
        report = self._watch.report
        if self._config.max_breaks >= 0:
            report.check(self._config.max_breaks)
        self._say(
            f"{counted(self._num_blocks, 'block')}, {counted(report.num_breaks, 'graph break')}, "
            f"{counted(len(report.recompiles), 'recompilation')}"
        )
        for each in report.breaks:
            self._say(f"{each.place}: {each.eager + ' runs eagerly: ' if each.eager else ''}{each.kind}")
        self.save()

    def save(self) -> None:
        """Keep what was compiled since; evaluations compile, too."""
        if self._cache is not None and self._writes:
            self._cache.save()

    def _say(self, line: str) -> None:
        self._tell(f"compile   {line.removeprefix('compile cache: ')}")


def explain_step(model: Decoder, config: TrainConfig) -> Report:
    """Trace the loss of a batch of packed documents as one function, and tell where torch.compile could not follow."""
    length, device = config.data.sequence_length, next(model.parameters()).device
    ids_BS = torch.randint(model.config.vocab_size, (config.train.batch_size, length), device=device)
    cut = max(1, length // 3)
    mask = ColumnMask.causal_document([[cut, length - cut]] * len(ids_BS)).to(device)
    positions_BS = torch.cat([torch.arange(cut), torch.arange(length - cut)]).to(device).expand_as(ids_BS)

    def loss(ids_BS: Tensor, positions_BS: Tensor, mask: ColumnMask) -> Tensor:
        hidden_BSE = model(ids_BS, position_ids=positions_BS, mask=mask)
        return F.cross_entropy(model.logits(hidden_BSE).flatten(0, 1), ids_BS.flatten()) + model.auxiliary_loss()

    return explain(loss, ids_BS, positions_BS, mask)
