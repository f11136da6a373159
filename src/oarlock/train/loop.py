"""The training loop, in the order in which a run happens: set up, resume, evaluate, step, save, export.

    from oarlock.train import load_config, train
    result = train(load_config("configs/shakespeare.toml", ["--train.steps", "20"]))

One optimizer step over all ranks is one step over the union of their batches: losses are summed, divided by the
number of targets of all ranks and micro-batches, and the gradients are summed.
"""

import gc
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from oarlock import _native, checkpoint, debug
from oarlock.checkpoint import Checkpoint
from oarlock.memory import span
from oarlock.memory.offload import Plan
from oarlock.memory.offload.picture import plan_record
from oarlock.models.window import with_window
from oarlock.ops.peak import matmul_peak
from oarlock.parallel import Mesh
from oarlock.train.budget import MemoryBudget, describe
from oarlock.train.build import build_model, choose_device, decoder_config
from oarlock.train.compiled import CompiledBlocks
from oarlock.train.config import TrainConfig
from oarlock.train.data import Batch, EvaluationLoader, PackedLoader
from oarlock.train.divergence import NonFiniteLossError, dump_batches, dump_facts
from oarlock.train.ema import WeightAverage
from oarlock.train.environment import environment, peak_memory_bytes
from oarlock.train.export import export_model
from oarlock.train.garbage import collection_at_chosen_steps
from oarlock.train.memory import recorded
from oarlock.train.metrics import MetricsLog
from oarlock.train.opening import opening_notes
from oarlock.train.optim import build_optimizers
from oarlock.train.progress import Progress
from oarlock.train.report import write_report
from oarlock.train.run import RunDirectory
from oarlock.train.schedule import learning_rate_factor
from oarlock.train.signals import StopRequest
from oarlock.train.state import TrainingState
from oarlock.train.tasks import Evaluation, choose_task

_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    directory: Path
    step: int
    num_steps: int
    bits_per_byte: float | None
    """Of the last evaluation in this process; None if there was none, or if the task has none."""
    stopped_by: str
    """Name of the signal that ended the run early, or empty."""


def train(config: TrainConfig, *, resume: str = "never", mesh: Mesh | None = None) -> TrainResult:
    """Run or continue the training that `config` describes.

    Args:
        config: see `load_config`.
        resume: `never`, `auto` or a checkpoint's folder; see `RunDirectory.start_or_resume`.
        mesh: the ranks to train on; None = this process alone.

    Raises:
        ValueError, FileNotFoundError: something in the configuration, data or model does not fit; nothing is written.
        NonFiniteLossError: training diverged.
        CheckpointError: the checkpoint to resume from is damaged.
    """
    return Trainer(config, resume=resume, mesh=mesh or Mesh.build()).run()


class Trainer:
    """One run; `train` is the short way to use it."""

    def __init__(self, config: TrainConfig, *, resume: str, mesh: Mesh) -> None:
        self.config, self.mesh = config, mesh
        self.rank, self.num_ranks = mesh.replica, mesh.num_replicas
        self.directory = RunDirectory(config.train.out)
        self.resume = resume
        self.resume_from = self.directory.start_or_resume(config, resume)
        if config.train.threads:
            torch.set_num_threads(config.train.threads)
        self.device = choose_device(config.train.device)
        _native.keep_freed_memory()

        self.task = choose_task(config)
        self.data = mesh.first_rank_first(self.task.prepare)  # the others find what the first has tokenised
        length, batch_size = config.data.sequence_length, config.train.batch_size
        place = (mesh.rank("data"), mesh.size("data"), mesh.group("context") if mesh.size("context") > 1 else None)
        self.loader = PackedLoader(self.data.train, length, batch_size, config.train.seed, *place)
        self.validation = EvaluationLoader(self.data.validation, length, batch_size, *place)

        architecture = decoder_config(config.model, self.data.vocab_size, length)
        self.model = build_model(config, architecture, self.device)
        mesh.check_same_parameters(self.model)
        self.optimizers = build_optimizers(self.model, config.optimizer)
        self.task.start(self.model, self.data, mesh, self.device)
        ema = config.ema
        self.average = WeightAverage(self.model, ema.decay, ema.start) if ema.decay else None
        self.saved = TrainingState(
            self.model, self.optimizers, self.loader, self.data.directory.name, average=self.average
        )
        self.num_steps = config.train.steps or self._steps_for(config.train.flops)
        if self.resume_from is not None:
            saved = self.saved.load(self.resume_from, device=self.device, rank=self.rank, num_ranks=self.num_ranks)
            self.num_steps = self._steps_after(saved)
        self.state = self.saved.loop
        self.state.num_steps = self.num_steps
        self.peak = matmul_peak(torch.float32 if config.train.dtype == "fp32" else torch.bfloat16, self.device)
        self.last_evaluation: Evaluation | None = None
        self.recorder: debug.Recorder | None = debug.errors(self.model) if config.debug.errors else None
        self.budget: MemoryBudget | None = None

    # ------------------------------------------------------------------------------------------------- the story

    def run(self) -> TrainResult:
        """Train to the last step, or until a signal asks to stop; then save, export and report."""
        train = self.config.train
        with ExitStack() as cleanup:
            self.mesh.first_rank_only(lambda: self._open(cleanup))
            cleanup.push(self._note_failure)
            progress = cleanup.enter_context(Progress(self.num_steps, every=train.log_every, rank=self.rank))
            stop = cleanup.enter_context(StopRequest())
            cleanup.enter_context(collection_at_chosen_steps(train.gc_every > 0))
            cleanup.callback(checkpoint.finish_saves)
            self._announce(progress)
            optimizers = self.optimizers.values()
            cleanup.enter_context(recorded(self.config.memory, self.model, optimizers, self.device, self.rank))
            compiled = self._compiled(progress)
            if self.config.memory.budget:
                self.budget = self._new_budget(progress)
                cleanup.enter_context(self.budget.opened())
            if self.resume_from is None:
                self._evaluate(progress)
            progress.start(self.state.step)
            stopped_by = ""
            while self.state.step < self.num_steps and not stopped_by:
                batches = [self.loader.next_batch() for _ in range(train.accumulation)]
                watched = self.recorder or nullcontext()
                within = nullcontext() if compiled is None else compiled.step()
                with within, self._within_budget(batches), span(f"step {self.state.step + 1}"), watched:
                    asked = self._step(batches, progress, stop)
                if self.recorder is not None:
                    self.recorder.step()
                if asked:
                    stopped_by = stop.requested or "a signal to another rank"
                last = self.state.step == self.num_steps
                if last or (train.eval_every and self.state.step % train.eval_every == 0):
                    self._evaluate(progress)
                    progress.start(self.state.step)
                every = self.config.checkpoint.every
                if last or stopped_by or (every and self.state.step % every == 0):
                    self._save(stopped_by)
                if train.gc_every and self.state.step % train.gc_every == 0:
                    gc.collect()
            checkpoint.finish_saves()
            if compiled is not None:
                compiled.save()
            finished = self.state.step == self.num_steps
            if finished:
                self.mesh.first_rank_only(self._export)
            elif self.rank == 0:
                progress.note(f"stopped by {stopped_by}: step {self.state.step} is saved; --resume auto continues")
            self._end("finished" if finished else "stopped", "" if finished else stopped_by, signal=stopped_by)
        bits = self.last_evaluation.bits_per_byte if self.last_evaluation else None
        return TrainResult(self.directory.path, self.state.step, self.num_steps, bits, "" if finished else stopped_by)

    def _step(self, batches: Sequence[Batch], progress: Progress, stop: StopRequest) -> bool:
        """One optimizer step; returns whether any rank was asked to stop."""
        began = time.perf_counter()
        step = self.state.step + 1
        factor = learning_rate_factor(step, self.num_steps, self.config.schedule)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = factor * group["peak_lr"]

        mine = [sum(b.num_losses for b in batches), sum(b.input_ids.numel() for b in batches)]
        num_losses, tokens = self.mesh.sum_scalars(mine)
        sums = [0.0] * (2 + len(self.task.metric_names))
        for batch in batches:
            sums = [x + y for x, y in zip(sums, self._backward(batch.to(self.device), num_losses), strict=True)]
        self.mesh.sum_gradients(self.model)
        num_asked, flops, loss_sum, *metric_sums = self.mesh.sum_scalars([bool(stop.requested), *sums])
        loss = loss_sum / num_losses
        norm = self._clip_gradients()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            what = f"loss {loss}, gradient norm {norm}"
            raise self._diverged(what, loss, norm, batches, num_losses)
        with span("optimizer"):
            for optimizer in self.optimizers.values():
                optimizer.step() if self.budget is None else self.budget.step_optimizer(optimizer)
                optimizer.zero_grad()
        self.model.update_balance(self.config.train.balance_rate)
        if self.average is not None:
            self.average.update()

        seconds = time.perf_counter() - began
        self.state.step, self.state.tokens = step, self.state.tokens + int(tokens)
        self.state.flops, self.state.seconds = self.state.flops + flops, self.state.seconds + seconds
        shown = {
            "loss": loss,
            "grad_norm": norm,
            "lr": factor * next(iter(self.optimizers.values())).param_groups[0]["peak_lr"],
            "tokens_per_second": tokens / seconds,
            "mm_share": flops / seconds / (self.peak * self.num_ranks),
            "memory_bytes": peak_memory_bytes(self.device),
        } | {name: value / num_losses for name, value in zip(self.task.metric_names, metric_sums, strict=True)}
        if self.rank == 0:
            totals = {"tokens": self.state.tokens, "flops": self.state.flops, "seconds": self.state.seconds}
            self.log.write("train", step, **shown, **totals)
        progress.update(step, **shown)
        return num_asked > 0

    def _backward(self, batch: Batch, num_losses: float) -> list[float]:
        """Add one micro-batch's gradients; returns its model FLOPs, its summed loss and the task's summed metrics."""
        mask = batch.mask(self.device)
        mixed = torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.train.dtype == "bf16")
        with span("forward"), mixed:
            loss_sum, metric_sums = self.task.loss(self.model, batch, mask)
            objective = (loss_sum + self.model.auxiliary_loss() * batch.num_losses) / num_losses
        with span("backward"):
            objective.backward()
        length = mask.seqlen_q
        per_token = self.model.flops_per_token(mask.density * length, lambda w: with_window(mask, w).density * length)
        return [per_token * batch.input_ids.numel(), loss_sum.item(), *metric_sums]

    def _within_budget(self, batches: Sequence[Batch]) -> AbstractContextManager[None]:
        """A step on these batches takes no more memory than the configuration allows."""
        if self.budget is None:
            return nullcontext()

        def measure() -> None:
            """Forward and backward pass of the first batch; with more than one, into gradients that are there."""
            if len(batches) == 1:
                for optimizer in self.optimizers.values():
                    optimizer.zero_grad()
            self._backward(batches[0].to(self.device), batches[0].num_losses)
            self.model.update_balance(0.0)  # the same tokens are counted again

        return self.budget.step(measure)

    def _clip_gradients(self) -> float:
        limit = self.config.optimizer.clip_norm or math.inf
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()

    def _replayed(self, batches: Sequence[Batch], num_losses: float) -> str:
        """Where the first value that is not finite comes from, if errors shall say so: from computing it again."""
        if not (self.config.debug.errors and batches):
            return ""
        for parameter in self.model.parameters():
            parameter.grad = None
        with debug.find_nonfinite(self.model) as found:
            found.step_number = self.state.step + 1  # as the run counts
            for batch in batches:
                self._backward(batch.to(self.device), num_losses)
        return f"\n{found.report()}"

    def _diverged(
        self, what: str, loss: float, norm: float, batches: Sequence[Batch] = (), num_losses: float = 0.0
    ) -> NonFiniteLossError:
        """Dump the state of a step that went wrong, and say in metrics, status and report that the run ended there."""
        step = self.state.step + bool(batches)
        dump = self.directory.path / f"non-finite-step-{step}"
        self.mesh.first_rank_only(lambda: dump_facts(dump, step, loss, norm, self.model))
        dump_batches(dump, batches, self.rank, self.num_ranks)
        self._end("non_finite", "a loss that is not finite", step, loss=loss, grad_norm=norm)
        kept = checkpoint.list_checkpoints(self.directory.checkpoints)
        return NonFiniteLossError(
            f"step {step}: {what}. {dump} holds the batches and the names of all gradients and weights that are not "
            f"finite; {f'the last checkpoint is {kept[-1].name}' if kept else 'there is no checkpoint yet'}. "
            f"Lower the learning rate or raise the warm-up.{self._replayed(batches, num_losses)}"
        )

    # ---------------------------------------------------------------------------------------------------- set-up

    def _steps_for(self, budget: float) -> int:
        """Optimizer steps that a budget of FLOPs pays for, by the mask of the first epoch's packing."""
        sequences = self.config.train.batch_size * self.config.train.accumulation * self.mesh.size("data")
        packing, length = self.loader.packing, self.config.data.sequence_length
        per_step = self.model.flops_per_token(packing.mean_visible, packing.mean_visible_within) * sequences * length
        return max(1, int(min(budget / per_step, _MOST_STEPS)))

    def _steps_after(self, saved: Checkpoint) -> int:
        """The last step of a run that goes on from a checkpoint: as asked or planned before, unless ranks or budget
        have changed; then what is left of the budget."""
        step, spent, budget = self.saved.loop.step, self.saved.loop.flops, self.config.train.flops
        if self.config.train.steps:
            num_steps = self.config.train.steps
        elif (saved.state["data_ranks"], saved.state["budget"]) == (self.mesh.size("data"), budget):
            num_steps = self.saved.loop.num_steps
        elif budget < spent and budget != saved.state["budget"]:
            raise ValueError(f"{saved.path} has spent {spent:.3g} FLOPs, more than train.flops = {budget:.3g}")
        else:
            num_steps = step + (self._steps_for(budget - spent) if budget > spent else 0)
        if step > num_steps:
            raise ValueError(f"{saved.path} is at step {step}, beyond the {num_steps} steps asked for")
        return num_steps

    def _compiled(self, progress: Progress) -> CompiledBlocks | None:
        if not self.config.train.compile:
            return None
        return CompiledBlocks(self.config.compile, self.model, writes_cache=self.rank == 0, tell=progress.note)

    def _new_budget(self, progress: Progress) -> MemoryBudget:
        def tell(plan: Plan, state_bytes: int) -> None:
            first, *others = describe(plan, state_bytes)
            progress.note(f"memory    {first}")
            for line in others:
                progress.note(f"          {line}")
            if self.rank == 0:
                self.log.write("event", self.state.step, event="memory_plan", **plan_record(plan, state_bytes))

        optimizers = list(self.optimizers.values())
        return MemoryBudget(self.config.memory, self.model, optimizers, self.device, tell)

    def _open(self, cleanup: ExitStack) -> None:
        """Take the folder of the run, for the first rank; nothing has been written before."""
        cleanup.enter_context(self.directory.claimed())
        if self.directory.start_or_resume(self.config, self.resume) != self.resume_from:
            raise ValueError(f"another process has trained in {self.directory.path} meanwhile; start again")
        self.directory.prepare(self.config, self.data.tokenizer_path)
        self._write_status(finished=False, stopped_by="")
        self.log = MetricsLog(self.directory.path, tensorboard=self.config.train.tensorboard)
        cleanup.callback(self.log.close)
        self.log.resume(-1 if self.resume_from is None else self.state.step)

    def _announce(self, progress: Progress) -> None:
        length, notes = self.config.data.sequence_length, self.task.notes
        for note in opening_notes(self.model, self.data, self.loader, length, notes, self.device, self.peak):
            progress.note(note)
        if self.resume_from is not None:
            progress.note(f"resumed   at step {self.state.step} of {self.num_steps}")
        if self.rank == 0:
            event = "start" if self.resume_from is None else "resume"
            details = {
                "task": self.config.train.task,
                "num_steps": self.num_steps,
                "num_parameters": self.model.num_parameters(),
                "packing": asdict(self.loader.packing.report),
                "mask_density": self.loader.packing.mean_visible / self.config.data.sequence_length,
                "matmul_peak": self.peak,
            }
            self.log.write("event", self.state.step, event=event, environment=environment(self.device), **details)

    # ------------------------------------------------------------------------------------- evaluation and keeping

    def _evaluate(self, progress: Progress) -> None:
        began = time.perf_counter()
        with span("evaluation"), self._averaged(self.config.ema.evaluate):
            result = self.task.evaluate(self.model, self.validation, self.mesh, self.device)
        seconds = time.perf_counter() - began
        self.last_evaluation = result
        self.state.best_loss = min(self.state.best_loss, result.loss)
        if self.rank == 0:
            values = {"loss": result.loss, **result.metrics, "evaluation_seconds": seconds}
            self.log.write("eval", self.state.step, **values, tokens=self.state.tokens, flops=self.state.flops)
            write_report(self.directory.path)
        progress.note(f"eval      step {self.state.step}: {result}, {seconds:.1f} s")
        if not math.isfinite(result.loss):
            raise self._diverged(f"validation loss {result.loss}", result.loss, math.nan)

    def _save(self, stopped_by: str) -> None:
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise self._diverged("the optimizer has made weights that are not finite", math.nan, math.nan)
        if self.rank == 0:
            self.log.sync()  # the metrics are never behind a checkpoint
        with nullcontext() if self.budget is None else self.budget.states_here():
            self.saved.save(self.directory.checkpoints, self.config, self.mesh.size("data"))
        self._write_status(finished=False, stopped_by=stopped_by)

    def _averaged(self, wanted: bool) -> AbstractContextManager[None]:
        """Meanwhile the model's weights are their average, if there is one and it is wanted."""
        return self.average.applied() if self.average is not None and wanted else nullcontext()

    def _export(self) -> None:
        with self._averaged(self.config.ema.export):
            export_model(self.model, self.data, self.directory.export)

    def _note_failure(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Say that an error has ended the run; a loss that is not finite has said so."""
        if error is not None and not isinstance(error, NonFiniteLossError):
            words = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
            with suppress(OSError):  # a full disk may be the error
                self._end("failed", words, error=words)

    def _end(self, event: str, stopped_by: str, step: int | None = None, **values: float | str) -> None:
        """Say in metrics, status and report how the run has ended."""
        if self.rank == 0:
            self.log.write("event", self.state.step if step is None else step, event=event, **values)
            self.log.sync()
            self._write_status(event == "finished", stopped_by)
            write_report(self.directory.path)

    def _write_status(self, finished: bool, stopped_by: str) -> None:
        if self.rank == 0:
            steps = {"step": self.state.step, "steps": self.num_steps, "budget": self.config.train.flops}
            self.directory.write_status(**steps, finished=finished, stopped_by=stopped_by)
