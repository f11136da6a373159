"""Bytes for people."""


def amount(num_bytes: float, *, sign: bool = False) -> str:
    """1536 is "1.50 KiB"; `sign`: with a plus where it is more than nothing."""
    value, prefix = abs(float(num_bytes)), "-" if num_bytes < 0 else "+" if sign and num_bytes > 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{prefix}{value:.0f} {unit}" if unit == "B" else f"{prefix}{value:.2f} {unit}"
        value /= 1024
    return f"{prefix}{value:.2f} TiB"
