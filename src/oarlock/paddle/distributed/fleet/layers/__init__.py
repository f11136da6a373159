"""Tensor-parallel parts."""
