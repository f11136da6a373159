"""`debug.trace`: what a model did, call by call and node by node, as JSON lines that can be compared and drawn.

    with debug.trace(model, dir="run_a", digests="sha1") as t:
        for batch in batches:
            model(batch).sum().backward()
            t.step()

Files, of rank R: `trace.rankR.jsonl`, and `stacks.rankR.jsonl` if stacks are kept.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import dropwhile, repeat
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from oarlock.debug.calls import Call, Mark, current_node, gradient_name
from oarlock.debug.content import Algorithm, Reader, version_of
from oarlock.debug.graph import Graph, graph_of
from oarlock.debug.leaves import API, Accumulation, Leaves
from oarlock.debug.names import OVERWRITING, UNINITIALISED, VIEWS, Value, shape_of
from oarlock.debug.recorder import Recorder
from oarlock.ranks import Ranks

FORMAT = 1
_FLUSH_RECORDS = 2048


def trace(
    model: nn.Module | None = None,
    dir: str | os.PathLike[str] | None = None,
    *,
    stacks: bool = False,
    nodes: bool = True,
    digests: Algorithm | None = None,
    decimals: int | None = None,
    probes: bool = False,
) -> Trace:
    """A context that records calls of torch's API and the backward nodes that they made.

    Args:
        model: gives modules and parameters their names; None names modules by class.
        dir: folder for the files; None keeps records in memory (`Trace.records`).
        stacks: keep the call stack of each call, which is also that of its backward node.
        nodes: record backward nodes when they run.
        digests: also what is in each tensor, and what the gradients of leaves have become: "sha1", "md5" or
            "digest64"; see `content.Reader`.
        decimals: round before hashing.
        probes: also numbers that can be compared with a tolerance.

    Raises:
        ValueError: `dir` holds a trace already; unknown algorithm.
    """
    if digests is None and (decimals is not None or probes):
        raise ValueError("decimals and probes say how digests are made: set digests too, such as digests='sha1'")
    reader = None if digests is None else Reader(digests, decimals=decimals, probes=probes)
    return Trace(model, dir, stacks=stacks, nodes=nodes or digests is not None, reader=reader)


class Trace(Recorder):
    """A recorder that writes records; `trace` makes one."""

    def __init__(
        self,
        model: nn.Module | None,
        dir: str | os.PathLike[str] | None,
        *,
        stacks: bool,
        nodes: bool,
        reader: Reader | None,
    ) -> None:
        super().__init__(model, stacks=stacks, nodes=nodes)
        self.rank = Ranks().rank
        self.dir = None if dir is None else Path(dir)
        self._reader = reader
        self._reads = self._holds_backward = reader is not None
        self._watches_calls = False
        self._contents: dict[int, tuple[weakref.ref[Tensor], tuple[int, int], dict[str, Any]]] = {}
        self._unset: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._last_gradients: dict[int, tuple[Tensor, int, dict[str, Any]]] = {}
        self._leaves = Leaves(self._accumulated)
        self._pending: list[Any] = []
        self._file: IO[str] | None = None
        self._writing = threading.Lock()
        self._take = self._pending.append if self.dir is None else self._add
        if self.dir is not None and self._file_of("trace").exists():
            raise ValueError(f"{self._file_of('trace')} exists: remove that trace, or name another folder")

    def _file_of(self, view: str) -> Path:
        assert self.dir is not None
        return self.dir / f"{view}.rank{self.rank}.jsonl"

    def __enter__(self) -> Trace:
        if self._num_entered == 0 and self.dir is not None:
            self.dir.mkdir(parents=True, exist_ok=True)
            again = self._file_of("trace").exists()
            self._file = open(self._file_of("trace"), "a", encoding="utf-8")
            if not again:
                self._file.write(json.dumps(self._header()) + "\n")
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._num_entered == 0:
            self._leaves.release()
        if self._num_entered == 0 and self._file is not None:
            self._flush()
            self._file.close()
            self._file = None
            if self.stacks is not None:
                with open(self._file_of("stacks"), "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(line) + "\n" for line in self._stack_lines())

    def _header(self) -> dict[str, Any]:
        return {"kind": "run", "format": FORMAT, "torch": torch.__version__, "rank": self.rank}

    # --------------------------------------------------------------------------------------------------- records

    def on_begin(self, call: Call, arguments: list[Tensor]) -> Any:
        # Before the call, which may write into them.
        if self._reader is None:
            return None
        unread = call.api in OVERWRITING
        looks = call.api in VIEWS
        for value, tensor in zip(call.inputs, arguments, strict=False):
            if value.needs_grad and tensor.is_leaf:
                self._leaves.watch(tensor, value)
        return [
            {} if (unread and i == 0) or (looks and self._is_unset(tensor)) else self._read(tensor)
            for i, tensor in enumerate(arguments)
        ]

    def on_call(self, call: Call, results: Sequence[Tensor], begun: Any) -> None:
        if self._reader is None:
            self._add(call)
            return
        if call.api in UNINITIALISED:
            for tensor in results:
                self._unset[id(tensor)] = (weakref.ref(tensor), version_of(tensor))
        outputs = [{} if self._is_unset(tensor) else self._read(tensor, anew=True) for tensor in results]
        self._add((call, begun, outputs))

    def _watch(self, node: Any, mark: Mark) -> None:
        if isinstance(node, BackwardCFunction):
            node.register_prehook(self._node_begins)
        node.register_hook(partial(self._node_ran if self._reader is None else self._node_read, mark))

    def _node_ran(self, mark: Mark, to: Any, came: Any) -> None:
        assert self._take is not None
        self._take((mark, self.step_number))

    def _node_read(self, mark: Mark, to: Any, came: Any) -> None:
        read, last = self._reader, self._last_gradients
        assert read is not None
        inputs, outputs = [], []
        with torch._C.DisableTorchFunction():
            for i, gradient in enumerate(came):
                if gradient is not None:
                    known = last.get(id(gradient))
                    is_same = known is not None and known[0] is gradient and known[1] == version_of(gradient)
                    content = known[2] if known is not None and is_same else read(gradient)
                    inputs.append((i, gradient.dtype, shape_of(gradient), content))
            # What leaves here mostly arrives at the next node as the same tensor.
            self._last_gradients = last = {}
            for edge, gradient in zip(current_node().next_functions, to, strict=False):
                if gradient is not None:
                    content = read(gradient)
                    last[id(gradient)] = (gradient, version_of(gradient), content)
                    outputs.append((self.value_at(edge), gradient.dtype, shape_of(gradient), content))
            self._add((mark, self.step_number, inputs, outputs))

    def _accumulated(self, value: Value, leaf: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            gradient = leaf.grad
            if gradient is not None:
                number = self._counts[API] = self._counts.get(API, 0) + 1
                content = self._read(gradient, anew=True)
                self._add(Accumulation(value, number, self.step_number, gradient.dtype, shape_of(gradient), content))

    def around_backward(self) -> AbstractContextManager[object]:
        return self._gradients_forgotten()

    @contextmanager
    def _gradients_forgotten(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._last_gradients = {}

    def _read(self, tensor: Tensor, anew: bool = False) -> dict[str, Any]:
        """What is in a tensor, which is not read again while neither its version nor the iteration changes.

        A write through `.data` changes no version: it is seen in the next iteration.
        """
        assert self._reader is not None
        now = (version_of(tensor), self.step_number)
        known = self._contents.get(id(tensor))
        if not anew and known is not None and known[0]() is tensor and known[1] == now:
            return known[2]
        content = self._reader(tensor)
        self._contents[id(tensor)] = (weakref.ref(tensor), now, content)
        return content

    def _is_unset(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor holds what was there before, as far as torch knows."""
        if not self._unset:
            return False
        whole = tensor if tensor._base is None else tensor._base
        ref, version = self._unset.get(id(whole), (None, 0))
        return ref is not None and ref() is whole and version == version_of(whole)

    def _sweep(self) -> None:
        super()._sweep()
        self._leaves.sweep()
        for table in (self._contents, self._unset):
            for key, (ref, *_) in list(table.items()):
                if ref() is None:
                    del table[key]

    def _add(self, record: Any) -> None:
        self._pending.append(record)
        if self._file is not None and len(self._pending) >= _FLUSH_RECORDS:
            self._flush()

    def _flush(self) -> None:
        with self._writing:
            if self._file is not None:
                pending, self._pending = self._pending, []
                self._file.writelines(json.dumps(_as_json(record)) + "\n" for record in pending)

    # ---------------------------------------------------------------------------------------------------- reading

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records in order, also those that are in the file by now."""
        if self.dir is None:
            return [_as_json(record) for record in self._pending]
        if self._file is not None:
            self._flush()
            self._file.flush()
        return read_records(self._file_of("trace"))

    def graph(self, *, step: int = 0, only: Literal["forward", "backward"] | None = None) -> Graph:
        """The graph of one iteration; see `graph_of`."""
        stacks = {} if self.stacks is None else {line["stack"]: line["frames"] for line in self._stack_lines()}
        return graph_of(self.records, step=step, only=only, stacks=stacks)

    def _stack_lines(self) -> Iterable[dict[str, Any]]:
        assert self.stacks is not None
        for number in range(1, len(self.stacks)):
            own = dropwhile(lambda frame: "/oarlock/debug/" in frame.filename, self.stacks.frames(number))
            frames = [f"{frame.filename}:{frame.line} {frame.name}" for frame in own]
            yield {"stack": number, "frames": frames}


def trace_files(path: str | os.PathLike[str]) -> dict[int, Path]:
    """The files of a trace by their ranks; a file by itself is the only one, under 0.

    Raises:
        FileNotFoundError: there is no trace.
    """
    path = Path(path)
    if not path.is_dir():
        return {0: path}
    found = {int(file.name.split(".")[1].removeprefix("rank")): file for file in path.glob("trace.rank*.jsonl")}
    if not found:
        raise FileNotFoundError(f"{path} holds no trace (trace.rank0.jsonl)")
    return dict(sorted(found.items()))


def read_records(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a trace, without its first line.

    Args:
        path: file, or folder with the files of one rank.

    Raises:
        FileNotFoundError, ValueError: there is no trace, one of another format, or of several ranks.
    """
    found = list(trace_files(path).values())
    if len(found) > 1:
        raise ValueError(f"{path} holds traces of {len(found)} ranks; name one, such as {found[0]}")
    path = found[0]
    with open(path, encoding="utf-8") as file:
        try:
            head = json.loads(file.readline() or "{}")
            if not isinstance(head, dict) or head.get("kind") != "run" or head.get("format") != FORMAT:
                raise ValueError(
                    f"{path} is no trace of format {FORMAT}; write it with debug.trace or oarlock debug trace"
                )
            return [json.loads(line) for line in file]
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is damaged or no trace: {error}") from None


def _as_json(record: Any) -> dict[str, Any]:
    if isinstance(record, Accumulation):
        return record.line()
    if isinstance(record[0], Mark):
        return _node_line(*record)
    call, inputs, outputs = (Call(*record), None, None) if isinstance(record[0], str) else record
    line = {"kind": "call", "name": call.name, "api": call.api, "module": call.module, "phase": call.phase}
    line |= {"step": call.step, "thread": call.thread}
    if call.parent:
        line |= {"parent": call.parent, "depth": call.depth}
    if call.unseen:
        line["unseen"] = True
        inputs = None
    if call.stack:
        line["stack"] = call.stack
    return line | {"inputs": _tensors(call.inputs, inputs), "outputs": _tensors(call.outputs, outputs)}


def _node_line(
    mark: Mark, step: int, inputs: list[Any] | None = None, outputs: list[Any] | None = None
) -> dict[str, Any]:
    call = mark.call
    line = {"kind": "node", "name": f"{call.name}Backward", "node": mark.node, "api": call.api, "call": call.name}
    line |= {"module": call.module, "phase": "backward", "step": step}
    if call.stack:
        line["stack"] = call.stack
    if inputs is None or outputs is None:
        came = [(f"{value.name}@grad", value.dtype, value.shape, None) for value in mark.values if value is not None]
        needed = dict.fromkeys(value for value in call.inputs if value.needs_grad)
        to = [(f"{value.name}@grad", value.dtype, value.shape, None) for value in needed]
    else:
        came = [(gradient_name(mark, number), *about) for number, *about in inputs]
        to = [("" if value is None else f"{value.name}@grad", *about) for value, *about in outputs]
    return line | {"inputs": list(map(_tensor, came)), "outputs": list(map(_tensor, to))}


def _tensors(values: Iterable[Value], contents: Iterable[Any] | None) -> list[dict[str, Any]]:
    contents = repeat(None) if contents is None else contents
    return [_tensor((v.name, v.dtype, v.shape, content)) for v, content in zip(values, contents, strict=False)]


def _tensor(tensor: tuple[Any, ...]) -> dict[str, Any]:
    name, dtype, shape, content = tensor
    return {"name": name, "dtype": str(dtype).removeprefix("torch."), "shape": list(shape)} | (content or {})
