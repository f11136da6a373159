"""Writes torch snapshots of any size, entry by entry as a C pickler would, without building them."""

from pathlib import Path

import numpy as np

_BATCH = 1000  # of a pickler


def write_large_snapshot(path: Path, num_events: int) -> tuple[int, int]:
    """One device whose trace allocates and frees `num_events / 2` blocks of 1 MiB, eight at a time, from two places.

    Returns:
        the size of the file and the number of bytes at the peak.
    """
    assert num_events % 16 == 0
    memo: dict[str, int] = {}

    def text(value: str) -> bytes:
        if value in memo:
            return b"h" + bytes([memo[value]])
        memo[value] = len(memo)
        data = value.encode()
        return b"\x8c" + bytes([len(data)]) + data + b"\x94"

    def frame(name: str) -> bytes:
        memo[f"frame {name}"] = len(memo)
        body = text("filename") + text("model.py") + text("line") + b"K\x07" + text("name") + text(name)
        return b"}\x94(" + body + b"u"

    with open(path, "wb") as file:
        # A list of what is referred to later comes first, under a key that readers do not know.
        memo["top"] = 0
        head = b"\x80\x04}\x94(" + text("known") + b"]\x94("
        memo["known list"] = len(memo)
        for key in ("action", "alloc", "free_requested", "free_completed", "addr", "size", "stream", "time_us"):
            head += text(key)
        for key in ("frames", "pool_id", "device", "compile_context", "user_metadata"):
            head += text(key)
        places = []
        for name in ("forward", "backward"):
            places.append(len(memo))
            memo[f"stack {name}"] = len(memo)
            head += b"]\x94(" + frame(name) + b"e"
        head += b"e" + text("device_traces") + b"]\x94]\x94"
        memo["traces"], memo["trace"] = len(memo), len(memo) + 1
        file.write(head)

        key = {name: b"h" + bytes([memo[name]]) for name in memo if memo[name] < 256}
        template = (
            *(b"}\x94(", key["action"], b"hA", key["addr"], b"\x8a\x06AAAAAA", key["size"], b"J\0\0\x10\0"),
            *(key["stream"], b"K\0", key["time_us"], b"\x8a\x07TTTTTTT", key["frames"], b"jFFFF"),
            *(key["pool_id"], b"K\0K\0\x86\x94", key["device"], b"K\0"),
            *(key["compile_context"], b"\x8c\x03N/A\x94", key["user_metadata"], b"\x8c\0\x94", b"u"),
        )
        places_of = {}
        at = 0
        for part in template:
            for letter in (b"hA", b"AAAAAA", b"TTTTTTT", b"FFFF"):
                if letter in part:
                    places_of[letter] = at + part.index(letter)
            at += len(part)
        entry = np.frombuffer(b"".join(template), np.uint8)
        base, first_us = 0x7F0000000000, 1_700_000_000_000_000
        for start in range(0, num_events, _BATCH):
            number = np.arange(start, min(start + _BATCH, num_events))
            rows = np.tile(entry, (number.size, 1))
            freeing, slot = number // 8 % 2 == 1, number % 8
            rows[:, places_of[b"hA"] + 1] = np.where(freeing, memo["free_completed"], memo["alloc"])
            for field, width, values in (
                (b"AAAAAA", 6, base + slot * (1 << 20)),
                (b"TTTTTTT", 7, first_us + number * 10),
                (b"FFFF", 4, np.where(slot % 2 == 0, places[0], places[1])),
            ):
                data = values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
                rows[:, places_of[field] : places_of[field] + width] = data
            file.write(b"(" + rows.tobytes() + b"e")

        start = b"\x8c\x07address\x8a\x06" + base.to_bytes(6, "little")
        block = b"}(" + start + b"\x8c\x04sizeJ\0\0\x80\0\x8c\x05state\x8c\x08inactive\x8c\x06frames]u"
        segment = b"}(\x8c\x06deviceK\0" + start + b"\x8c\x0atotal_sizeJ\0\0\x80\0\x8c\x06streamK\0"
        segment += b"\x8c\x06blocks](" + block + b"eu"
        file.write(b"a" + b"\x8c\x08segments](" + segment + b"eu.")
    return path.stat().st_size, 8 << 20
