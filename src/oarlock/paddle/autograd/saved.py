"""Hooks on what is kept for the backward pass."""

import torch

saved_tensors_hooks = torch.autograd.graph.saved_tensors_hooks
