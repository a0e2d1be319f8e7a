"""How well a mean step time is known."""

import math

# Student's t, two-sided 95 %, for 1..30 degrees of freedom.
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def student95(freedom):
    """The quantile for so many degrees of freedom (>= 1)."""
    return T95[freedom - 1] if freedom <= len(T95) else 1.96 + 2.5 / freedom


def correlation(values):
    """Of successive values; 0 where they do not vary."""
    mean = sum(values) / len(values)
    square = sum((value - mean) ** 2 for value in values)
    if square == 0:
        return 0.0
    return sum((a - mean) * (b - mean) for a, b in zip(values, values[1:])) / square


def half_width(values):
    """Half of the 95 % confidence interval of the mean of successive values; nan for fewer than two.

    Values that resemble their predecessor tell less than independent ones: as in a first-order autoregressive series
    the mean's variance is taken (1+r)/(1-r) times as large. A negative r, which short series show by chance, is not
    made use of, and r beyond 0.8 is more than a short series can tell.
    """
    n = len(values)
    if n < 2:
        return math.nan
    mean = sum(values) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    r = min(max(correlation(values), 0.0), 0.8)
    return student95(n - 1) * deviation * math.sqrt((1 + r) / (1 - r) / n)


def quantile(values, q):
    """Nearest rank, as in summary.json."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]
