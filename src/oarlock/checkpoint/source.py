"""Stored tensors by name, whatever the format: a checkpoint, a Hugging Face folder, a directory of torch DCP."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from oarlock.checkpoint.aoa import AOA
from oarlock.checkpoint.derived import Derived
from oarlock.checkpoint.exchange import Exchange
from oarlock.checkpoint.loading import LoadReport, Strict, Verify, load_tensors
from oarlock.checkpoint.manifest import CheckpointError
from oarlock.checkpoint.near_miss import near_miss
from oarlock.checkpoint.shards import Shard
from oarlock.checkpoint.stored import StoredTensor
from oarlock.ranks import Ranks


@dataclass(frozen=True)
class TensorSource:
    """Tensors in files; nothing is read before it is asked for.

    Attributes:
        label: what to call it in messages.
        tensors: name -> dtype, shape and where its pieces lie.
        metadata: texts that the files carry about themselves.
    """

    label: str
    tensors: Mapping[str, StoredTensor | Derived]
    verify: Verify = "none"
    metadata: Mapping[str, str] = field(default_factory=dict)

    def read(self, names: Collection[str] | None = None, *, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Whole tensors in new contiguous memory; names that share one stored tensor share one again.

        Raises:
            CheckpointError: no such name, or a file is damaged.
        """
        wanted = list(self.tensors) if names is None else list(names)
        if absent := [name for name in wanted if name not in self.tensors]:
            raise CheckpointError(
                f"{self.label} has no tensor {absent[0]!r}; {near_miss(absent[0], self.tensors)}".rstrip("; ")
            )
        stored = {id(self.tensors[name]): self.tensors[name] for name in wanted}
        for tensor in stored.values():
            if isinstance(tensor, StoredTensor):  # before memory is taken for what a file only claims to hold
                for piece in tensor.pieces:
                    piece.file.check(piece.name, tensor.dtype, piece.box.size)
        new = {key: torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for key, tensor in stored.items()}
        load_tensors(
            self.label,
            {str(key): tensor for key, tensor in stored.items()},
            {str(key): Shard.whole(tensor) for key, tensor in new.items()},
            verify=self.verify,
            ranks=Ranks.alone(),
        )
        return {name: new[id(self.tensors[name])] for name in wanted}

    def load(
        self,
        destinations: Mapping[str, Tensor | Shard],
        *,
        aoa: AOA | str | Sequence[str] | None = None,
        slots: bool = False,
        strict: Strict = "all",
        cast: bool = False,
        prefer: Collection[str] = (),
        exchange: Exchange = "auto",
        process_group: dist.ProcessGroup | None = None,
    ) -> LoadReport:
        """Fill tensors that exist, whatever their layout was when they were saved.

        Everything is checked before anything is written: names, shapes, dtypes, and the digests (where the format has
        them) of the parts that are read. Each rank reads only what its own tensors need. If one rank fails, all raise.

        Args:
            destinations: name -> tensor, DTensor or :class:`Shard`, any strides and device, written in place.
            aoa: how the destinations are made of what is stored, in the AOA language (docs/aoa.md); None = each is the
                stored tensor of its name.
            slots: the names are `slot/parameter`, as optimizer_tensors gives them: `aoa` speaks of the parameters, and
                every slot follows their geometry but not their casts. A scalar that is made of several must be the
                same in all of them.
            strict: "all" = the names must be the same on both sides; "destination" = every destination needs a source,
                others that are stored are only reported; "none" = names without a partner are only reported.
            cast: convert where the dtypes differ, instead of refusing.
            prefer: of destinations that share their memory (tied weights) those that count, where the checkpoint has
                different values for them; without a choice that is an error.
            exchange: whether ranks send each other what several need, instead of reading it from the files each: True =
                all ranks together read each byte once, "node" = the ranks of every machine do; False = none is sent;
                "auto" = True, if the ranks are on several machines and these would read more than 1.25 times the bytes
                that are needed. The same on all ranks.
            process_group: the processes that load together; None = all of them, or this one.

        Returns:
            What was loaded, missing and unexpected.

        Raises:
            CheckpointError: names, shapes or dtypes do not fit, or a file is damaged; AOAError: the program does not
                fit. Nothing was changed.
        """
        return load_tensors(
            *(self.label, self.tensors, destinations),
            aoa=aoa,
            slots=slots,
            strict=strict,
            cast=cast,
            verify=self.verify,
            prefer=prefer,
            exchange=exchange,
            ranks=Ranks(process_group),
        )
