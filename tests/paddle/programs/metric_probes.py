"""Small programs about metrics."""

import paddle
from paddle.metric import Accuracy, Auc, Metric, Precision, Recall, accuracy
from probing import main, numbers


def _labels(*shape, high=4):
    return (numbers(*shape, seed=9).abs() * 7).astype("int64") % high


def accuracies():
    metric = Accuracy(topk=(1, 3))
    found = []
    for seed in range(3):
        correct = metric.compute(numbers(5, 4, seed=seed), _labels(5, 1))
        found.append([correct, metric.update(correct), metric.accumulate()])
    last = metric.name()
    metric.reset()
    return [found, last, metric.accumulate()]


def accuracy_of_one():
    metric = Accuracy()
    one_hot = paddle.nn.functional.one_hot(_labels(6), 4)
    first = metric.update(metric.compute(numbers(6, 4), one_hot))
    second = metric.update(metric.compute(numbers(6, 4, seed=3), _labels(6)))
    return [first, second, metric.accumulate(), metric.name(), isinstance(metric, Metric)]


def accuracy_at_once():
    return [accuracy(numbers(6, 4), _labels(6, 1)), accuracy(numbers(6, 4), _labels(6, 1), k=2)]


def precision_and_recall():
    found = []
    for kind in (Precision, Recall):
        metric = kind()
        for seed in range(3):
            metric.update(paddle.nn.functional.sigmoid(numbers(8, 1, seed=seed)), _labels(8, 1, high=2))
        found.append([metric.accumulate(), metric.name()])
        metric.reset()
        found.append(metric.accumulate())
    return found


def area_under_the_curve():
    metric = Auc()
    for seed in range(3):
        p = paddle.nn.functional.sigmoid(numbers(20, 1, seed=seed))
        metric.update(paddle.concat([1 - p, p], axis=1), _labels(20, 1, high=2))
    value = metric.accumulate()
    metric.reset()
    return [value, metric.accumulate(), metric.name()]


if __name__ == "__main__":
    main(globals())
