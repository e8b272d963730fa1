"""Numbers as this course prints them: an SI or binary prefix, and only the digits that mean something."""

import math

_PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}


def significant(value: float, digits: int = 2) -> str:
    """`value` to `digits` significant figures, without an exponent: 0.01234 → "0.012"; 1234 → "1200"."""
    if not math.isfinite(value):
        return {True: "inf", False: "−inf"}[value > 0] if math.isinf(value) else "nan"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:.{decimals}f}".replace("-", "−")


def si(value: float, unit: str, digits: int = 2) -> str:
    """`value` in base units (s, B/s, FLOP/s …) with the SI prefix that fits: si(0.0123, "s") → "12 ms".

    Two figures are what survives a repetition of most measurements on a shared machine; ask for three only
    where the spread shows that they mean something. A value with at least `digits` figures before the point
    keeps them all (si(0.123, "s") → "120 ms": the last digit is not significant).
    """
    if value == 0 or not math.isfinite(value):
        return f"{significant(value)} {unit}"
    rounded = float(f"{value:.{digits - 1}e}")  # first, so that 999.6 µs becomes 1.0 ms and not 1000 µs
    exponent = math.floor(math.log10(abs(rounded)) / 3) * 3
    exponent = min(max(exponent, min(_PREFIXES)), max(_PREFIXES))
    return f"{significant(rounded / 10.0**exponent, digits)} {_PREFIXES[exponent]}{unit}"


def size(n_bytes: int) -> str:
    """A number of bytes with a binary prefix, to three figures: size(33554432) → "32 MiB"."""
    value = float(n_bytes)
    for prefix in ("", "Ki", "Mi", "Gi", "Ti", "Pi"):
        if abs(value) < 1024 or prefix == "Pi":
            break
        value /= 1024
    return f"{value:.3g} {prefix}B" if value < 1000 else f"{value:.0f} {prefix}B"
