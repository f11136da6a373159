"""Numbers as people read them."""

from oarlock.train.units import format_bytes, format_count, format_duration, format_scientific


def test_shapes_of_numbers() -> None:
    assert [format_count(v) for v in (0, 512, 999.6, 9800, 98_000, 1.25e6, 3.1e15, 2.5, 9999)] == [
        *("0", "512", "1.00k", "9.80k", "98.0k", "1.25M", "3.10e15", "2.5", "10.0k")
    ]
    assert [format_bytes(v) for v in (0, 512, 1536, 1.21 * 2**30, 300 * 2**20)] == [
        *("0 B", "512 B", "1.50 KiB", "1.21 GiB", "300.0 MiB")
    ]
    assert [format_duration(v) for v in (0.4, 42, 250, 3 * 3600 + 301, 200_000)] == [
        "0s",
        "42s",
        "4m10s",
        "3h05m",
        "2d07h",
    ]
    assert [format_scientific(v) for v in (2.53e7, -1e-12, 0)] == ["2.53e7", "-1.00e-12", "0.00e0"]
    assert format_scientific(1e-3, digits=1) == "1.0e-3"
