#!/usr/bin/python3
"""Parallel efficiency against workers, one small picture an algorithm, on common axes.

usage: efficiency.py RUNS.csv efficiency.png
"""

import atexit
import io
import math
import os
import shutil
import sys
import tempfile

import runs

# The figure that this testbed is measured against: weak scaling of ResNet-50 on ImageNet.
REFERENCE = {"model": "resnet50", "workers": 128, "efficiency": 0.90}
REFERENCE_TEXT = "ChainerMN, published: 90 % on 128 GPUs (Akiba, Fukuda, Suzuki 2017, arXiv:1710.11351)"

INK, QUIET, GRID = "#22272e", "#6b7480", "#e4e7eb"
STYLE = {  # told apart by colour, by shape and by the line; and set aside, so that equal values don't hide each other
    "measured": {"color": "#0b62a4", "marker": "o", "line": "-", "size": 6, "aside": 0.955, "label": "measured: training on this host"},
    "replayed": {"color": "#d1660f", "marker": "s", "line": "-", "size": 5.5, "aside": 1.047, "label": "replayed: real exchange, computing slept after a profile"},
    "simulated": {"color": "#5f7d22", "marker": "", "line": (0, (4, 1.6)), "size": 0, "aside": 1, "label": "simulated platform"},
}
PANEL_INCHES = (3.35, 2.3)


def import_pyplot():
    """matplotlib without a display or a home; a missing one is said in one line."""
    if "MPLCONFIGDIR" not in os.environ:
        os.environ["MPLCONFIGDIR"] = tempfile.mkdtemp(prefix="chorale-mpl-")
        atexit.register(shutil.rmtree, os.environ["MPLCONFIGDIR"], ignore_errors=True)
    try:
        import matplotlib
    except ImportError as error:
        raise runs.Unreadable(f"{error}: install python3-matplotlib (experiments/setup.sh does)") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "text.color": INK,
            "axes.edgecolor": QUIET,
            "axes.linewidth": 0.6,
            "xtick.color": QUIET,
            "ytick.color": QUIET,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
        }
    )
    return pyplot


def relative_error(row, by_key):
    """Of an efficiency: its own interval and its baseline's, which are independent. The baseline itself has none."""
    base = runs.baseline_of(row, by_key)
    if base is None or base["started"] == row["started"] and int(row["workers"]) == 1:
        return 0.0
    parts = [part for part in (runs.spread(row), runs.spread(base)) if math.isfinite(part)]
    return math.sqrt(sum(part * part for part in parts))


def draw_series(axes, rows, mode, by_key):
    """One mode in one small picture: a line through the means, intervals, hollow marks where they are wide."""
    style = STYLE[mode]
    points = sorted(
        (int(row["workers"]), float(row["efficiency"]), relative_error(row, by_key), runs.wide(row))
        for row in rows
        if row["mode"] == mode and row["status"] == "ok" and row["efficiency"]
    )
    if not points:
        return
    workers, values = [point[0] * style["aside"] for point in points], [point[1] for point in points]
    axes.plot(workers, values, color=style["color"], linestyle=style["line"], linewidth=1.4, zorder=3)
    if mode == "simulated":
        axes.plot(workers, values, ".", color=style["color"], markersize=5, zorder=3)
        return
    for count, (_, value, error, is_wide) in zip(workers, points):
        axes.errorbar(count, value, yerr=value * error, color=style["color"], capsize=2.2, elinewidth=1, zorder=4)
        face = "white" if is_wide else style["color"]
        axes.plot(count, value, style["marker"], color=style["color"], markerfacecolor=face, markeredgewidth=1.3,
                  markersize=style["size"], zorder=5)  # fmt: skip


def draw_refusals(axes, rows):
    """Counts that an algorithm can't do, or that failed, are not just missing."""
    for row in rows:
        if row["status"] != "ok":
            color = STYLE[row["mode"]]["color"]
            axes.plot(int(row["workers"]), 0.03, "x", color=color, markersize=5, zorder=6, clip_on=False)
            axes.annotate(row["status"], (int(row["workers"]), 0.03), xytext=(0, 5), textcoords="offset points",
                          ha="center", fontsize=6.5, color=color)  # fmt: skip


def draw_reference(axes):
    """ChainerMN's published point, and the line that it sets."""
    axes.axhline(REFERENCE["efficiency"], color=INK, linestyle=":", linewidth=0.9, zorder=2)
    axes.plot(REFERENCE["workers"], REFERENCE["efficiency"], "*", color=INK, markersize=10, markeredgecolor="white",
              markeredgewidth=0.6, zorder=6)  # fmt: skip


def panel_title(axes, spec):
    """The spec; long ones in smaller type rather than cut."""
    text = spec if spec != "none" else "none  (moves nothing: the bound)"
    axes.set_title(text, loc="left", fontsize=9.5 if len(spec) < 34 else 7, fontweight="bold", color=INK, pad=5)


def set_axes(axes, most, top):
    """Alike in all small pictures."""
    ticks = [2**i for i in range(int(math.log2(most)) + 1)]
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.8, most * 1.3)
    axes.set_xticks(ticks)
    axes.set_xticklabels([str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, top)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    axes.set_yticklabels(["0", "25 %", "50 %", "75 %", "100 %"])
    axes.tick_params(length=2, width=0.6, labelsize=8)
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend_entries(pyplot, modes, with_wide, with_reference):
    """Handles for what the picture shows, and for nothing else."""
    line, handles = pyplot.Line2D, []
    for mode in modes:
        style = STYLE[mode]
        handles.append(
            line([], [], color=style["color"], linestyle=style["line"], marker=style["marker"] or ".",
                 markersize=style["size"] or 5, linewidth=1.4, label=style["label"])  # fmt: skip
        )
    if with_wide:
        handles.append(
            line([], [], color=QUIET, marker="o", markerfacecolor="white", markersize=7, linestyle="none",
                 label="hollow: 95 % interval of the mean step wider than 10 %")  # fmt: skip
        )
    if with_reference:
        handles.append(line([], [], color=INK, linestyle=":", marker="*", markersize=9, linewidth=0.9,
                            label=REFERENCE_TEXT))  # fmt: skip
    return handles


def described(rows, mode):
    """What was run in a mode, as far as its rows agree."""

    def one(name):
        values = list(dict.fromkeys(row[name] for row in rows if row["mode"] == mode and row["status"] == "ok" and row[name]))
        return values[0] if len(values) == 1 else "various" if values else ""

    model = f"{one('model')}, {one('image_size')} px, batch {one('batch')} a worker"
    if mode == "simulated":
        return f"simulated: {model}, {one('device')} on {one('platform')}"
    threads = one("threads")
    return f"{mode}: {model}, {one('device').replace('replay:', '')}, {threads} thread{'' if threads == '1' else 's'} a worker"


def caption(rows, modes, origin):
    """Baseline, settings and machine: what a reader needs to judge the picture alone."""
    first = "Weak scaling: images/s on n workers / (n × images/s of 1 worker of the same mode, with as many threads); bars: 95 % intervals."
    machine = ", ".join(str(origin[key]) for key in ("processor",) if origin.get(key))
    cores = f", {origin['cores']} cores" if origin.get("cores") else ""
    host = f"host: {machine}{cores}, commit {origin['commit']}" if machine else ""
    return "\n".join([first, *(described(rows, mode) for mode in modes), *([host] if host else [])])


def figure(pyplot, rows, origin):
    """The whole picture."""
    specs, by_key = runs.algorithms(rows), {row["key"]: row for row in rows}
    good = [row for row in rows if row["status"] == "ok" and row["efficiency"]]
    modes = [mode for mode in runs.MODES if any(row["mode"] == mode for row in rows)]
    reference = any(row["model"] == REFERENCE["model"] for row in good)
    most = max([REFERENCE["workers"] if reference else 2, *(int(row["workers"]) for row in rows)])
    top = max([1.05, *(1.05 * float(row["efficiency"]) for row in good)])
    columns = min(3, len(specs))
    lines = -(-len(specs) // columns)
    handles = legend_entries(pyplot, modes, any(runs.wide(row) for row in good), reference)
    note = caption(rows, modes, origin)
    above, below = 0.72 + 0.2 * -(-len(handles) // 2), 0.55 + 0.155 * (note.count("\n") + 1)
    width, height = max(7.6, PANEL_INCHES[0] * columns), PANEL_INCHES[1] * lines + above + below
    drawing, grid = pyplot.subplots(lines, columns, sharex=True, sharey=True, squeeze=False, figsize=(width, height))
    for spec, axes in zip(specs, grid.flat):
        mine = [row for row in rows if row["allreduce"] == spec]
        if reference:
            draw_reference(axes)
        for mode in reversed(modes):
            draw_series(axes, mine, mode, by_key)
        draw_refusals(axes, mine)
        panel_title(axes, spec)
        set_axes(axes, most, top)
    for axes in list(grid.flat)[len(specs):]:
        axes.set_visible(False)
    for axes in list(grid.flat)[max(0, len(specs) - columns):len(specs)]:
        axes.tick_params(labelbottom=True)
    drawing.subplots_adjust(left=0.62 / width, right=1 - 0.15 / width, top=1 - above / height, bottom=below / height,
                            hspace=0.34, wspace=0.08)  # fmt: skip
    drawing.text(0.1 / width, 1 - 0.14 / height, "Parallel efficiency by algorithm", fontsize=13, fontweight="bold", va="top")
    drawing.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.1 / width, 1 - 0.42 / height), frameon=False,
                   ncols=2, columnspacing=2.5, borderpad=0, fontsize=8.5, labelspacing=0.35, handlelength=2.6, borderaxespad=0)  # fmt: skip
    drawing.text(0.5, (below - 0.36) / height, "workers", ha="center", va="center", fontsize=9, color=QUIET)
    drawing.text(0.1 / width, 0.08 / height, note, fontsize=7, color=QUIET, va="bottom", linespacing=1.45)
    return drawing


def main(table, picture):
    """Read, draw, write."""
    rows = runs.load(table)
    if not rows:
        raise runs.Unreadable(f"{table}: no rows yet, nothing to draw: run the sweep")
    pyplot = import_pyplot()
    drawing = figure(pyplot, rows, runs.provenance(table))
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=160)
    runs.write(picture, buffer.getvalue())


if __name__ == "__main__":
    sys.exit(runs.run("efficiency.py", main))
