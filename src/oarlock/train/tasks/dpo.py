"""Direct preference optimisation: make the better of two answers more probable than the worse, without a reward model.

A .jsonl file has one pair a line; all parts are plain text, or become messages for the model's chat template:

    {"prompt": [{"role": "user", "content": "Who?"}], "chosen": "The cox.", "rejected": "Nobody."}

loss = -log sigmoid(m) with the margin m = beta ((log p(c) - log q(c)) - (log p(r) - log q(r))), where log p sums over
an answer's tokens, c is the chosen and r the rejected answer, and q is the model as it was when the run began. The
log-probabilities under q are computed once, before the first step, and kept in the cache; the model exists once.

Source: Rafailov et al., "Direct Preference Optimization", 2023; label smoothing: Mitchell, "A note on DPO with noisy
preferences", 2023.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from oarlock import models
from oarlock.attention import ColumnMask
from oarlock.models import Decoder
from oarlock.ops import linear_cross_entropy
from oarlock.parallel import Mesh
from oarlock.train.config import TrainConfig
from oarlock.train.data import Batch
from oarlock.train.data.arrays import ArrayWriter, Kinds
from oarlock.train.data.pair_file import PairBatch, PairFile
from oarlock.train.data.token_file import token_dtype
from oarlock.train.tasks.examples import Encoder, Format, PreparedExamples, prepare_examples
from oarlock.train.tasks.records import Message, Preference, Record, Records, read_preference
from oarlock.train.tasks.reference import reference_log_probs
from oarlock.train.tasks.task import Evaluation, Task, TaskData


class DirectPreference(Task):
    """Loss: the mean over pairs; measures: accuracy (margin above 0), margin, log-probabilities of both answers."""

    metric_names = ("accuracy", "margin", "chosen_logp", "rejected_logp")

    def prepare(self) -> PreparedExamples:
        data = prepare_pairs(self.config)
        self.notes = data.notes
        return data

    def start(self, model: Decoder, data: TaskData, mesh: Mesh, device: torch.device) -> None:
        """Log-probabilities of all answers under the starting weights."""
        found = reference_log_probs(self.config, model, data, answer_log_probs, mesh, device)
        self._reference_train, self._reference_validation = (x.to(device) for x in found)

    def loss(self, model: Decoder, batch: Batch, mask: ColumnMask) -> tuple[Tensor, list[float]]:
        return self._loss(model, batch, mask, self._reference_train)

    @torch.no_grad()
    def evaluate(self, model: Decoder, batches: Iterable[Batch], mesh: Mesh, device: torch.device) -> Evaluation:
        was_training = model.training
        model.eval()
        sums = [0.0] * (2 + len(self.metric_names))
        for batch in batches:
            batch = batch.to(device)
            loss, metrics = self._loss(model, batch, batch.mask(device), self._reference_validation)
            sums = [x + y for x, y in zip(sums, [batch.num_losses, loss.item(), *metrics], strict=True)]
        model.train(was_training)
        num_pairs, loss_sum, *metric_sums = mesh.sum_scalars(sums)
        means = {name: value / num_pairs for name, value in zip(self.metric_names, metric_sums, strict=True)}
        return Evaluation(loss_sum / num_pairs, round(num_pairs), means)

    def _loss(self, model: Decoder, batch: Batch, mask: ColumnMask, reference_D2: Tensor) -> tuple[Tensor, list[float]]:
        assert isinstance(batch, PairBatch)
        options = self.config.dpo
        log_probs_G2 = answer_log_probs(model, batch, mask)
        gains_G2 = log_probs_G2 - reference_D2[batch.pairs]
        margin_G = options.beta * (gains_G2[:, 0] - gains_G2[:, 1])
        loss_G = -F.logsigmoid(margin_G)
        if options.label_smoothing:
            loss_G = torch.lerp(loss_G, -F.logsigmoid(-margin_G), options.label_smoothing)
        share = 1 if batch.plan is None else 1 / batch.plan.num_ranks  # each rank of a context group knows all pairs
        with torch.no_grad():
            measured = [(margin_G > 0).sum(), margin_G.sum(), *log_probs_G2.sum(0)]
            metrics = [share * x.item() for x in measured]
            reported = share * loss_G.sum()
        return reported + (loss_G.sum() - loss_G.sum().detach()), metrics


def answer_log_probs(model: Decoder, batch: PairBatch, mask: ColumnMask) -> Tensor:
    """log p(answer | prompt), summed over its tokens.

    Returns:
        float64 [G, 2]: chosen and rejected of each pair. Under a plan the tokens of all ranks count, and the gradient
        is that of this rank's.
    """
    hidden = model(batch.input_ids, position_ids=batch.position_ids, mask=mask, plan=batch.plan)
    loss_N = linear_cross_entropy(hidden.flatten(0, 1), model.output_weight, batch.targets.flatten(), reduction="none")
    answers_N = batch.answers.flatten()
    places = (answers_N >= 0).nonzero().squeeze(1)
    sums = torch.zeros(2 * len(batch.pairs), dtype=torch.float64, device=loss_N.device)
    sums = sums.index_add(0, answers_N[places], -loss_N[places].double())
    if batch.plan is not None:
        # The other ranks' tokens add to the value; their gradients arise there, and are summed with all others.
        total = sums.detach().clone()
        dist.all_reduce(total, group=batch.plan.group)
        sums = sums + (total - sums.detach())
    return sums.view(-1, 2)


def prepare_pairs(config: TrainConfig) -> PreparedExamples:
    """Pairs as `PairFile`s.

    Raises:
        ValueError, FileNotFoundError: model, template or a record do not fit; the message names the line.
    """
    encoder = Encoder.of_model(config)
    records = Records(config.data, "dpo", key=lambda record: record.get("prompt"), check=read_preference)
    shape = models.read_config(config.model.directory)
    windows = [w for layer in range(shape.num_hidden_layers) if (w := shape.window(layer)) is not None]
    window = min(windows, default=None)
    length = config.data.sequence_length
    form = Format(_arrays, lambda side, writer: _write(side, writer, encoder, length, window), _open)
    return prepare_examples(config, encoder, records, form, {"window": window})


def encode_preference(example: Preference, encoder: Encoder) -> tuple[list[int], list[int], list[int], bool]:
    """Tokens of the prompt and of both answers, none cut off, and whether a special token ends both.

    A prompt and its answer are one text; the answer begins with the first token that has a character of it, and no
    later than where the tokens of the two texts part.

    Raises:
        ValueError: the template refuses the example, or nothing comes before the answers.
    """
    texts = [_one_text(example, answer, encoder) for answer in (example.chosen, example.rejected)]
    (chosen, first), (rejected, second) = texts
    num_prompt = 0
    for a, b in zip(chosen[: min(first, second)], rejected, strict=False):
        if a != b:
            break
        num_prompt += 1
    if num_prompt == 0:
        raise ValueError("no token comes before the answers, so nothing predicts their first one")
    special = encoder.special_ids | {encoder.tokenizer.end_id}
    is_closed = chosen[-1] in special and rejected[-1] in special
    return chosen[:num_prompt], chosen[num_prompt:], rejected[num_prompt:], is_closed


def _one_text(example: Preference, answer: str | list[Message], encoder: Encoder) -> tuple[list[int], int]:
    """(ids up to the answer's end, tokens before the first that has a character of the answer)."""
    if isinstance(answer, str) or isinstance(example.prompt, str):
        assert isinstance(answer, str)
        assert isinstance(example.prompt, str)
        coded = encoder.tokenizer.backend.encode(example.prompt + answer, add_special_tokens=False)
        before = sum(last <= len(example.prompt) for _, last in coded.offsets)
        return [encoder.tokenizer.begin_id, *coded.ids, encoder.tokenizer.end_id], 1 + before
    text, spans = encoder.template.render_with_answers(
        [*example.prompt, *answer], len(example.prompt), tools=example.tools
    )
    if not spans:
        raise ValueError(f"{encoder.template.origin} shows nothing that the assistant says")
    coded = encoder.chat.encode(text, add_special_tokens=False)
    begin, end = spans[0][0], spans[-1][1]
    upto = sum(first < end for first, _ in coded.offsets)
    return coded.ids[:upto], sum(last <= begin for _, last in coded.offsets[:upto])


def fit_pair(parts: tuple[int, int, int], seq_len: int, window: int | None) -> tuple[int, int, bool]:
    """How a pair of (prompt, chosen, rejected) tokens fits a sequence: tokens kept of both answers, and if it shares.

    A pair shares its prompt unless a sliding window is shorter than its inputs. What is too long loses the end of the
    longer answer first.

    Raises:
        ValueError: the prompt leaves no room.
    """
    given, chosen, rejected = parts[0] - 1, parts[1], parts[2]
    is_shared = window is None or given + chosen + rejected <= window
    room = seq_len - given * (1 if is_shared else 2)
    if room < 2:
        twice = "" if is_shared else f", twice because of the model's window of {window},"
        raise ValueError(
            f"the prompt of {parts[0]} tokens{twice} leaves no room for two answers in data.sequence_length = "
            f"{seq_len}; lengthen the sequences or leave the example out"
        )
    kept = min(chosen, max(room - room // 2, room - rejected))
    return kept, min(rejected, room - kept), is_shared


def _write(
    side: Iterator[Record], writer: ArrayWriter, encoder: Encoder, seq_len: int, window: int | None
) -> dict[str, Any]:
    ends: set[int] = set()
    seen, num_cut, num_lost, num_open, num_plain, num_twice = 0, 0, 0, 0, 0, 0
    for record, where in side:
        example = read_preference(record, where)
        try:
            prompt, chosen, rejected, is_closed = encode_preference(example, encoder)
            kept_chosen, kept_rejected, is_shared = fit_pair((len(prompt), len(chosen), len(rejected)), seq_len, window)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if is_closed:
            ends.add(chosen[-1])
        lost = len(chosen) + len(rejected) - kept_chosen - kept_rejected
        writer.append("tokens", [*prompt, *chosen[:kept_chosen], *rejected[:kept_rejected]])
        writer.append("parts", [len(prompt), kept_chosen, kept_rejected])
        writer.append("is_shared", [is_shared])
        seen, num_cut, num_lost = seen + 1, num_cut + bool(lost), num_lost + lost
        num_open += not is_closed
        num_plain += isinstance(example.prompt, str)
        num_twice += not is_shared
    notes = []
    if num_plain < seen:
        notes.append(f"{seen - num_plain} pairs by {encoder.template.origin}")
    if num_plain:
        notes.append(f"{num_plain} pairs of plain text, without the chat template")
    if num_twice:
        notes.append(
            f"{num_twice} of {seen} pairs hold their prompt twice: they are longer than the window of {window}"
        )
    if num_cut:
        notes.append(
            f"{num_cut} of {seen} pairs are longer than {seq_len} tokens: the ends of their answers are cut off, "
            f"{num_lost} tokens are lost"
        )
    if num_open:
        notes.append(f"{num_open} of {seen} pairs have an answer without a special token after it: nothing to stop at")
    return {"notes": notes, "ends": sorted(ends)}


def _arrays(vocab_size: int) -> Kinds:
    return {"tokens": token_dtype(vocab_size), "parts": np.dtype(np.int64), "is_shared": np.dtype(np.bool_)}


def _open(arrays: dict[str, np.ndarray]) -> PairFile:
    return PairFile.of(arrays["tokens"], arrays["parts"].reshape(-1, 3), arrays["is_shared"])
