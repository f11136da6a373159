"""Small programs about datasets, samplers and loaders."""

import numpy as np
import paddle
from probing import main, numbers, raised


class Squares(paddle.io.Dataset):
    def __init__(self, count=7):
        self.count = count

    def __getitem__(self, index):
        return np.float32(index * index), index

    def __len__(self):
        return self.count


class Stream(paddle.io.IterableDataset):
    def __iter__(self):
        yield from (np.full([2], number, "float32") for number in range(5))


def loader_batches():
    return [
        [list(batch) for batch in paddle.io.DataLoader(Squares(), batch_size=3, drop_last=drop)]
        for drop in (False, True)
    ]


def loader_lengths():
    return [
        len(paddle.io.DataLoader(Squares(), batch_size=3)),
        len(paddle.io.DataLoader(Squares(), batch_size=3, drop_last=True)),
        len(paddle.io.BatchSampler(Squares(), batch_size=2)),
    ]


def loader_of_a_stream():
    return [batch for batch in paddle.io.DataLoader(Stream(), batch_size=2)]  # noqa: C416 - list() asks for a length


def loader_without_batches():
    class Rows(Squares):
        def __getitem__(self, index):
            return np.full([2], index)

    return list(paddle.io.DataLoader(Rows(3), batch_size=None))


def loader_of_dicts():
    class Named(Squares):
        def __getitem__(self, index):
            return {"x": np.arange(2) + index, "y": {"z": float(index)}, "t": str(index), "l": [index, index * 2.0]}

    return list(paddle.io.DataLoader(Named(4), batch_size=2))


def loader_with_its_own_collation():
    return list(paddle.io.DataLoader(Squares(4), batch_size=2, collate_fn=lambda rows: np.array([r[0] for r in rows])))


def loader_with_workers():
    return list(paddle.io.DataLoader(Squares(), batch_size=3, num_workers=2))


def loader_with_a_batch_sampler():
    sampler = paddle.io.BatchSampler(sampler=paddle.io.SequenceSampler(Squares(5)), batch_size=2, drop_last=True)
    loader = paddle.io.DataLoader(Squares(5), batch_sampler=sampler)
    return [list(loader), len(loader), list(sampler)]


def samplers_that_are_random():
    random = list(paddle.io.RandomSampler(Squares(9)))
    weighted = list(paddle.io.WeightedRandomSampler(np.array([0.0, 1.0, 0.0]), 5))
    subset = list(paddle.io.SubsetRandomSampler([3, 5, 9]))
    drawn = list(paddle.io.RandomSampler(Squares(3), replacement=True, num_samples=20))
    return [sorted(random), weighted, sorted(subset), len(drawn), max(drawn) < 3]


def distributed_shares():
    found = []
    for shuffle in (False, True):
        for drop in (False, True):
            for rank in range(3):
                sampler = paddle.io.DistributedBatchSampler(
                    Squares(20), 3, num_replicas=3, rank=rank, shuffle=shuffle, drop_last=drop
                )
                sampler.set_epoch(2)
                found.append([list(sampler), len(sampler)])
    return found


def datasets_joined():
    one, two = Squares(3), Squares(2)
    tensors = paddle.io.TensorDataset([numbers(3, 2), paddle.arange(3)])
    parts = paddle.io.random_split(Squares(6), [4, 2])
    return [
        [paddle.io.ConcatDataset([one, two])[index] for index in range(5)],
        list(paddle.io.ComposeDataset([one, one])[2]),
        [list(row) for row in paddle.io.ChainDataset([Stream(), Stream()])],
        list(tensors[1]),
        [len(part) for part in parts],
        list(paddle.io.Subset(one, [2, 0])[1]),
        raised(lambda: paddle.io.TensorDataset([numbers(3, 2), paddle.arange(2)])) != "nothing",
    ]


if __name__ == "__main__":
    main(globals())
