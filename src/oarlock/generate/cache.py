"""Keys and values of the tokens seen so far, one growing buffer per layer.

Shape letters: B batch, C capacity (columns allocated), L columns filled, S new columns, H key/value heads, D head dim.
"""

from torch import Tensor


class KeyValueCache:
    """Appends keys and values layer by layer; the storage doubles, so n appends copy O(n) columns in all.

    Columns are never dropped on the way: a sliding-window layer hides old columns by its mask, and
    the same cache serves layers with and without a window.

    Args:
        num_layers: layers that will append. A forward pass appends once per layer, in any order.
        capacity: columns [tokens] to allocate at the first append, where the number is known beforehand.
    """

    def __init__(self, num_layers: int, *, capacity: int = 0) -> None:
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        self._capacity = capacity
        self._lengths = [0] * num_layers
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers

    @property
    def length(self) -> int:
        """Columns that every layer holds; during a forward pass, the columns from before it."""
        return min(self._lengths)

    @property
    def num_bytes(self) -> int:
        """Bytes allocated."""
        return sum(buffer.nbytes for buffer in (*self._keys, *self._values) if buffer is not None)

    def append(self, layer: int, key_BSHD: Tensor, value_BSHD: Tensor) -> tuple[Tensor, Tensor]:
        """Store S new columns of one layer.

        Args:
            layer: index of the layer, 0 to num_layers - 1.
            key_BSHD: keys [B, S, H, D], any floating dtype; the first append fixes B, H, D, dtype and device.
            value_BSHD: values [B, S, H, Dv].

        Returns:
            All keys [B, L + S, H, D] and values [B, L + S, H, Dv]: views that the next append may leave behind.

        Raises:
            ValueError: the batch differs from what is stored.
        """
        start = self._lengths[layer]
        stop = start + key_BSHD.shape[1]
        keys = self._keys[layer] = _with_room(self._keys[layer], start, stop, self._capacity, key_BSHD)
        values = self._values[layer] = _with_room(self._values[layer], start, stop, self._capacity, value_BSHD)
        keys[:, start:stop] = key_BSHD
        values[:, start:stop] = value_BSHD
        self._lengths[layer] = stop
        return keys[:, :stop], values[:, :stop]

    def crop(self, length: int) -> None:
        """Forget every column from `length` on; the storage stays."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop to {length} columns: the cache holds {self.length}")
        self._lengths = [length] * len(self._lengths)

    def reorder(self, rows: Tensor) -> None:
        """Keep the batch rows `rows` (int64 [B'], repeats allowed), in that order."""
        for buffers in (self._keys, self._values):
            for layer, buffer in enumerate(buffers):
                if buffer is not None:
                    buffers[layer] = buffer.index_select(0, rows)


def _with_room(buffer: Tensor | None, filled: int, stop: int, capacity: int, like_BSHD: Tensor) -> Tensor:
    """`buffer` if it has `stop` columns, else a copy twice as wide (or as wide as needed)."""
    batch, _, num_heads, head_dim = like_BSHD.shape
    if buffer is None:
        return like_BSHD.new_empty(batch, max(stop, capacity), num_heads, head_dim)
    if buffer.shape[0] != batch:
        raise ValueError(f"the cache holds {buffer.shape[0]} rows but {batch} were appended; reorder() changes rows")
    if stop <= buffer.shape[1]:
        return buffer
    grown = buffer.new_empty(batch, max(stop, 2 * buffer.shape[1]), num_heads, head_dim)
    grown[:, :filled] = buffer[:, :filled]
    return grown
