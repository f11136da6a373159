"""`paddle.text`: decoding of tag sequences."""

import torch
from torch import Tensor, nn

from oarlock.paddle.declare import api, exports

AT = "paddle.text"


@api(at=AT, out=False)
def viterbi_decode(
    potentials: Tensor, transition_params: Tensor, lengths: Tensor, include_bos_eos_tag: bool = True
) -> tuple[Tensor, Tensor]:
    """The sequence of tags with the largest sum of emissions and transitions.

    Args:
        potentials: [B, S, T], the score of each tag at each step.
        transition_params: [T, T], from a tag to the next.
        lengths: int64 [B].
        include_bos_eos_tag: the last tag begins a sequence and the second to last one ends it.

    Returns:
        (scores [B], tags int64 [B, longest length], 0 after the end of a sequence).
    """
    longest = int(lengths.max()) if lengths.numel() else 0
    score = potentials[:, 0]
    if include_bos_eos_tag:
        score = score + transition_params[-1]
        score = torch.where((lengths == 1)[:, None], score + transition_params[-2], score)
    backward = []
    for step in range(1, longest):
        best = (score[:, :, None] + transition_params).max(1)
        arrived = best.values + potentials[:, step]
        if include_bos_eos_tag:
            arrived = torch.where((lengths == step + 1)[:, None], arrived + transition_params[-2], arrived)
        alive = (lengths > step)[:, None]
        score = torch.where(alive, arrived, score)
        backward.append(best.indices)
    total, tag = score.max(-1)
    path = [tag]
    for step in range(longest - 1, 0, -1):
        alive = lengths > step
        tag = torch.where(alive, backward[step - 1].gather(1, tag[:, None])[:, 0], tag)
        path.append(tag)
    tags = torch.stack(path[::-1], 1) if longest else lengths.new_zeros(len(lengths), 0)
    inside = torch.arange(longest, device=tags.device) < lengths[:, None]
    return total, torch.where(inside, tags, 0)


class ViterbiDecoder(nn.Module):
    """`viterbi_decode` with given transitions."""

    def __init__(self, transitions: Tensor, include_bos_eos_tag: bool = True, name: str | None = None) -> None:
        super().__init__()
        self.transitions = transitions
        self.include_bos_eos_tag = include_bos_eos_tag

    def forward(self, potentials: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(scores [B], tags [B, longest length])."""
        return viterbi_decode(potentials, self.transitions, lengths, self.include_bos_eos_tag)


globals().update(exports(AT))
