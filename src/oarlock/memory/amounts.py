"""Bytes for people."""


def amount(num_bytes: float, *, sign: bool = False) -> str:
    """Three digits: 1536 is "1.50 KiB"; `sign`: with a plus where it is more than nothing."""
    value, prefix = abs(float(num_bytes)), "-" if num_bytes < 0 else "+" if sign and num_bytes > 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{prefix}{value:.0f} {unit}" if unit == "B" else f"{prefix}{_digits(value)} {unit}"
        value /= 1024
    return f"{prefix}{_digits(value)} TiB"


def allocations(number: int) -> str:
    """1 is "1 allocation"."""
    return f"{number:,} allocation" + ("s" if number != 1 else "")


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
