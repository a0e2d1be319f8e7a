#!/usr/bin/python3
"""report.html of a sweep: the picture, one table, where the figures come from. One file, nothing outside it needed.

usage: report.py RUNS.csv report.html      (efficiency.png is taken from beside RUNS.csv)
"""

import base64
import html
import os
import sys

import runs

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #22272e; max-width: 74rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
img { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .22rem .55rem; border-bottom: 1px solid #e4e7eb; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #6b7480; vertical-align: bottom; position: sticky; top: 0; background: #fff; }
th.text, td.text { text-align: left; } td.reason { text-align: left; white-space: normal; min-width: 12rem; color: #6b7480; }
tr.first td { border-top: 2px solid #c9ced6; }
tr.wide td.spread { background: #fff0d6; font-weight: 600; } tr.refused td { color: #6b7480; } tr.failed td { background: #fde4e1; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .85rem; }
dt { color: #6b7480; } dd { margin: 0; overflow-wrap: anywhere; }
p.note { color: #6b7480; font-size: .85rem; }
"""

# heading, class, how a row fills it
COLUMNS = (
    ("algorithm", "text", lambda row: row["allreduce"]),
    ("mode", "text", lambda row: row["mode"]),
    ("workers", "", lambda row: row["workers"]),
    ("images/s", "", lambda row: figure(row["images_per_s"], 1)),
    ("efficiency", "", lambda row: percent(runs.number(row["efficiency"]))),
    ("± 95 % of step", "spread", lambda row: percent(runs.spread(row)) if row["mode"] != "simulated" else "–"),
    ("step p50 ms", "", lambda row: figure(row["step_ms_p50"], 1)),
    ("p99 ms", "", lambda row: figure(row["step_ms_p99"], 1)),
    ("compute ms", "", lambda row: figure(row["compute_ms"], 1)),
    ("comm ms", "", lambda row: figure(row["comm_ms"], 1)),
    ("exposed ms", "", lambda row: figure(row["exposed_ms"], 1)),
    ("MB sent a step", "", lambda row: figure(row["bytes_sent_per_step"], 1, 1e-6)),
    ("loss", "", lambda row: figure(row["loss"], 3)),
    ("transport", "text", lambda row: row["transport"] or row["platform"]),
    ("device", "text", lambda row: row["device"]),
    ("remark", "reason", lambda row: remark(row)),
)


def figure(text, places, scale=1.0):
    """A number of the table, or a dash."""
    value = runs.number(text) * scale
    return f"{value:,.{places}f}" if value == value else "–"


def percent(share):
    """A share, or a dash."""
    return f"{100 * share:.1f} %" if share == share else "–"


def remark(row):
    """What is odd about a row."""
    if row["status"] != "ok":
        return f"{row['status']}: {row['reason']}"
    return "; ".join(part for part in (row["reason"], "wide: interval above 10 %" if runs.wide(row) else "") if part)


def table(rows):
    """One table of all rows, grouped by algorithm, then mode, then workers."""
    order = {spec: place for place, spec in enumerate(runs.algorithms(rows))}
    rows = sorted(rows, key=lambda row: (order[row["allreduce"]], runs.MODES.index(row["mode"]), int(row["workers"])))
    head = "".join(f'<th class="{kind}">{html.escape(title)}</th>' for title, kind, _ in COLUMNS)
    lines, group = [], None
    for row in rows:
        kinds = [row["status"]] + ["wide"] * runs.wide(row) + ["first"] * (group not in (None, row["allreduce"]))
        group = row["allreduce"]
        fields = "".join(f'<td class="{kind}">{html.escape(str(value(row)))}</td>' for _, kind, value in COLUMNS)
        lines.append(f'<tr class="{" ".join(kinds)}">{fields}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(lines) + "\n</tbody></table>"


def picture(path):
    """The picture inside the page; a sentence where there is none."""
    try:
        with open(path, "rb") as file:
            data = base64.b64encode(file.read()).decode("ascii")
    except FileNotFoundError:
        return '<p class="note">There is no picture: plots/efficiency.py draws it.</p>'
    return f'<img alt="Parallel efficiency against workers, by algorithm" src="data:image/png;base64,{data}">'


def span(rows, column):
    """All values of a column, each once."""
    return ", ".join(sorted({row[column] for row in rows if row[column]})) or "–"


def origin(rows, path):
    """Where the figures come from: the sweep's own notes and what the rows say."""
    notes = runs.provenance(path)
    started = sorted(row["started"] for row in rows if row["started"])
    facts = [
        ("command", notes.get("command")),
        ("commits of the rows", span(rows, "commit")),
        ("hosts of the rows", span(rows, "host")),
        ("processor", f"{notes['processor']}, {notes.get('cores')} cores" if notes.get("processor") else None),
        ("system", notes.get("system")),
        ("started", f"{started[0]} to {started[-1]}" if started else None),
        ("transports", span(rows, "transport")),
        ("platform file", notes.get("platform")),
        ("profile file", notes.get("profile")),
        ("baselines", "; ".join(sorted({row["baseline"] for row in rows if row["baseline"]}))),
    ]
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{html.escape(str(text))}</dd>" for name, text in facts if text) + "</dl>"


def page(rows, path):
    """The whole document."""
    count = {status: sum(row["status"] == status for row in rows) for status in ("ok", "refused", "failed")}
    summary = f"{len(rows)} cells: {count['ok']} with results, {count['refused']} refused, {count['failed']} failed; "
    summary += f"{sum(map(runs.wide, rows))} wide (95 % interval of the mean step above 10 % to either side)."
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Parallel efficiency by algorithm</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>
<h1>Parallel efficiency by algorithm</h1>
<p>Weak scaling: images/s on n workers / (n · images/s of the baseline, which is 1 worker of the same mode). {summary}</p>
{picture(os.path.join(os.path.dirname(os.path.abspath(path)), "efficiency.png"))}
<h2>Cells</h2>
<div class="scroll">{table(rows)}</div>
<p class="note">Measured: training on this host. Replayed: real workers and real exchanges, computing slept after a profile.
Simulated: the same schedules on a simulated platform. Bytes sent are counted in the transport; a run whose bytes differ
from its schedule's fails. Published reference in the picture: 90 % on 128 GPUs, T. Akiba, K. Fukuda, S. Suzuki,
ChainerMN: Scalable Distributed Deep Learning Framework, 2017, arXiv:1710.11351.</p>
<h2>Provenance</h2>
{origin(rows, path)}
</body></html>
"""


def main(path, result):
    """Read, write."""
    runs.write(result, page(runs.load(path), path).encode("utf-8"))


if __name__ == "__main__":
    sys.exit(runs.run("report.py", main))
