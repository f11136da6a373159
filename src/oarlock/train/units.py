"""Numbers as people read them: counts, sizes, durations, powers of ten."""


def format_count(value: float) -> str:
    """Three digits and a decimal unit: 9.80k, 512, 1.25M; beyond 999T in powers of ten."""
    size = abs(value)
    if size < 999.5:
        return f"{value:.0f}" if size >= 99.95 or value == round(value) else f"{value:.3g}"
    for unit, scale in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if size < 999.5 * scale:
            scaled = value / scale
            return f"{scaled:.{2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0}f}{unit}"
    return format_scientific(value)


def format_bytes(size: float) -> str:
    """A binary size: 512 B, 1.50 KiB, 1.21 GiB."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.{2 if abs(value) < 10 else 1}f} {units[0]}"


def format_duration(seconds: float) -> str:
    """Two units at most: 42s, 4m10s, 3h05m, 2d07h."""
    total = round(seconds)
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if days:
        return f"{days}d{hours % 24:02d}h"
    if hours:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{minutes}m{total % 60:02d}s" if minutes else f"{total}s"


def format_scientific(value: float, digits: int = 2) -> str:
    """Mantissa and a short exponent: 2.53e7 (not 2.53e+07), 1.0e-3."""
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
