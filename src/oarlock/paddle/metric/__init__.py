"""Metrics that are fed batch by batch: accuracy, precision, recall, area under the curve."""

from oarlock.paddle.metric.metrics import Accuracy, Auc, Metric, Precision, Recall, accuracy

__all__ = ["Accuracy", "Auc", "Metric", "Precision", "Recall", "accuracy"]
