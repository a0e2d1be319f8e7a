#!/usr/bin/python3
"""experiments/peers/table.py on rows made up here: medians, ratios, verdicts, causes, and what is missing from them. The
expected numbers are written out, not computed as table.py does."""

import csv
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "experiments", "peers", "table.py")
COLUMNS = ["started", "round", "system", "network", "workers", "cores", "bytes", "in_place", "calls", "time_us", "wrong",
           "reason", "version", "load", "machine"]
K, M = 1 << 10, 1 << 20


def rows_of(network, system, size, times, workers=2, in_place="false", reason="", cores=2):
    """One row for each round."""
    return [{"started": "2026-01-02T030405", "round": i + 1, "system": system, "network": network, "workers": workers,
             "cores": cores, "bytes": size, "in_place": in_place, "calls": 9, "time_us": time, "wrong": 0,
             "reason": reason, "version": "V", "load": "0.1", "machine": "M"} for i, time in enumerate(times)]


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, text=None):
        path = os.path.join(self.folder.name, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def call(self, *words):
        return subprocess.run([sys.executable, TABLE, *words], capture_output=True, text=True, check=False)


class Tables(Folder):
    def table(self, rows, causes="", code=0):
        path = self.path("rows.csv")
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        done = self.call("allreduce", path, "--causes=" + self.path("causes.csv", "date,network,workers,from,to,cause\n"
                                                                    + causes))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout

    def cells(self, text, workers, size, title="## In shared memory, out of place"):
        """The verdict row of a size."""
        for line in text.split(title)[1].splitlines():
            if line.startswith(f"| {workers} | {size} |"):
                return [cell.strip() for cell in line.strip("|").split("|")]
        self.fail(f"no row of {workers} workers, {size}:\n{text}")

    def test_median_not_mean_and_spread(self):
        text = self.table(rows_of("shm", "openmpi", 64 * K, [30, 10, 500]) + rows_of("shm", "ring", 64 * K, [90, 15, 12]))
        self.assertEqual(self.cells(text, 2, "64K"), ["2", "64K", "Open MPI 30.0 (10.0..500)", "ring 15.0 (12.0..90.0)",
                                                      "0.50", "-", "≤ 1 of the best", "0.50", "met"])
        self.assertIn("Medians of 3 rounds", text)

    def test_best_of_each_side_and_auto(self):
        text = self.table(rows_of("shm", "openmpi", M, [400]) + rows_of("shm", "mpich", M, [200]) +
                          rows_of("shm", "ring", M, [300]) + rows_of("shm", "all-pairs", M, [100]) +
                          rows_of("shm", "auto", M, [150]))
        self.assertEqual(self.cells(text, 2, "1M")[2:6], ["MPICH 200", "all-pairs 100", "0.50", "0.75"])

    def test_small_vectors_are_held_against_mpich(self):
        rows = rows_of("shm", "openmpi", 8, [0.5]) + rows_of("shm", "mpich", 8, [2.0]) + rows_of("shm", "auto", 8, [1.0])
        self.assertEqual(self.cells(self.table(rows), 2, "8")[4:], ["2.00", "2.00", "≤ 1 of MPICH", "0.50", "met"])

    def test_goals_change_at_4k_and_64m(self):
        for size, name, ours, verdict in ((4 * K - 4, "4092", 1.0, "met"), (4 * K, "4K", 1.0, "**missed**"),
                                          (64 * M - 4, "67108860", 0.49, "met"), (64 * M, "64M", 0.49, "**missed**"),
                                          (64 * M, "64M", 0.16, "met")):
            rows = (rows_of("shm", "openmpi", size, [0.5]) + rows_of("shm", "mpich", size, [2.0]) +
                    rows_of("shm", "ring", size, [ours]))
            self.assertEqual(self.cells(self.table(rows), 2, name)[-1], verdict, (size, ours))

    def test_tcp_is_held_against_open_mpi_and_gloo_only(self):
        rows = (rows_of("tcp", "openmpi", 8, [50]) + rows_of("tcp", "gloo", 8, [40], in_place="true") +
                rows_of("tcp", "mpich", 8, [10]) + rows_of("tcp", "ring", 8, [30]))
        self.assertEqual(self.cells(self.table(rows), 2, "8", "## Over tcp on 127.0.0.1, out of place")[2:],
                         ["MPICH 10.0", "ring 30.0", "3.00", "-", "≤ 1 of Open MPI and Gloo", "0.75", "met"])

    def test_gloo_stands_in_both_comparisons(self):
        rows = (rows_of("shm", "openmpi", 64 * K, [100]) + rows_of("tcp", "gloo", 64 * K, [20], in_place="true") +
                rows_of("shm", "ring", 64 * K, [40]))
        text = self.table(rows)
        self.assertEqual(self.cells(text, 2, "64K")[2:5], ["Gloo 20.0", "ring 40.0", "2.00"])
        self.assertNotIn("in place\n\n|", text.replace("out of place", ""))

    def test_networks_and_worker_counts_do_not_mix(self):
        rows = (rows_of("shm", "openmpi", 64 * K, [100]) + rows_of("shm", "ring", 64 * K, [50]) +
                rows_of("tcp", "openmpi", 64 * K, [7]) + rows_of("tcp", "ring", 64 * K, [7]) +
                rows_of("shm", "openmpi", 64 * K, [10], workers=4) + rows_of("shm", "ring", 64 * K, [20], workers=4))
        text = self.table(rows)
        self.assertEqual(self.cells(text, 2, "64K")[4], "0.50")
        self.assertEqual(self.cells(text, 4, "64K")[4], "2.00")
        self.assertEqual(self.cells(text, 2, "64K", "## Over tcp on 127.0.0.1, out of place")[4], "1.00")

    def test_in_place_is_a_table_of_its_own(self):
        rows = (rows_of("shm", "openmpi", M, [100]) + rows_of("shm", "ring", M, [50]) +
                rows_of("shm", "openmpi", M, [100], in_place="true") + rows_of("shm", "ring", M, [80], in_place="true"))
        text = self.table(rows)
        self.assertEqual(self.cells(text, 2, "1M")[4], "0.50")
        self.assertEqual(self.cells(text, 2, "1M", "## In shared memory, in place")[4], "0.80")

    def test_a_miss_has_its_causes(self):
        rows = []
        for size, peer, ours in ((8, 1, 4), (64, 1, 5), (64 * K, 10, 100)):
            rows += rows_of("shm", "mpich", size, [peer], workers=4) + rows_of("shm", "ring", size, [ours], workers=4)
        text = self.table(rows, "2026-01-01,shm,any,0,63,a header\n2026-01-01,shm,2,0,63,wrong count\n"
                          "2026-01-01,tcp,any,0,63,wrong network\n")
        lines = [line for line in text.splitlines() if line.startswith("- 4 workers")]
        self.assertEqual(len(lines), 3)
        self.assertIn("4 workers share 2 cores", lines[0])
        self.assertIn("8: 4.00, ≤ 1 of MPICH", lines[0])
        self.assertIn("Measured: a header (2026-01-01).", lines[0])
        self.assertIn("80% of it is what 8 take, too", lines[1])
        self.assertIn("none is on file", lines[1])
        self.assertIn("its bytes: 0.66 GB/s", lines[2])

    def test_no_miss_no_causes(self):
        text = self.table(rows_of("shm", "mpich", 8, [2]) + rows_of("shm", "ring", 8, [1]))
        self.assertNotIn("Short of the goal", text)
        self.assertNotIn("missed", text)

    def test_without_a_peer_nothing_is_met(self):
        rows = rows_of("shm", "ring", 8, [1]) + rows_of("shm", "openmpi", 8, [2])  # the goal is MPICH
        self.assertEqual(self.cells(self.table(rows), 2, "8")[4:], ["0.50", "-", "≤ 1 of MPICH", "-", "not measured"])

    def test_failures_are_told_and_left_out(self):
        rows = (rows_of("shm", "openmpi", M, [100, 100]) + rows_of("shm", "mpich", M, [""], reason="failed with exit code 9") +
                rows_of("shm", "ring", M, [1], reason="wrong elements") + rows_of("shm", "all-pairs", M, [60, 60]))
        text = self.table(rows, code=1)
        self.assertEqual(self.cells(text, 2, "1M")[2:5], ["Open MPI 100 (100..100)", "all-pairs 60.0 (60.0..60.0)", "0.60"])
        self.assertIn("- mpich, shm, 2 workers, 1048576 bytes, round 1: failed with exit code 9", text)
        self.assertIn("- ring, shm, 2 workers, 1048576 bytes, round 1: wrong elements", text)

    def test_refusals_are_told_and_no_failure(self):
        rows = (rows_of("shm", "openmpi", M, [100]) + rows_of("shm", "rhd", M, [""], reason="refused: not so") +
                rows_of("shm", "ring", M, [60]))
        self.assertIn("refused: not so", self.table(rows))

    def test_a_size_without_any_time_has_a_row(self):
        rows = rows_of("shm", "openmpi", 8, [""], in_place="", reason="failed with exit code 1") + rows_of("shm", "ring", 64, [1])
        self.assertEqual(self.cells(self.table(rows, code=1), 2, "8")[2:5], ["-", "-", "-"])

    def test_no_rows_are_no_table(self):
        done = self.call("allreduce", self.path("rows.csv", ",".join(COLUMNS) + "\n"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("no rows", done.stderr)


class Add(Folder):
    def add(self, text, code=0, sizes="8,64"):
        to = self.path("all.csv")
        done = self.call("add", "--to=" + to, "--from=" + self.path("some.csv", text), f"--exit={code}",
                         "--sizes=" + sizes, "round=1", "system=chorale", "network=shm", "workers=2")
        with open(to, newline="", encoding="utf-8") as file:
            return done.returncode, [(row["system"], row["bytes"], row["time_us"], row["reason"])
                                     for row in csv.DictReader(file)]

    def test_ours_are_named_by_algorithm(self):
        head = "allreduce,workers,transport,bytes,in_place,time_us,wrong,refused\n"
        self.assertEqual(self.add(head + "ring,2,shm,8,false,1.5,0,\nring,2,shm,64,false,2,0,\n"),
                         (0, [("ring", "8", "1.5", ""), ("ring", "64", "2", "")]))

    def test_wrong_elements_and_unchecked_ones(self):
        head = "system,bytes,time_us,wrong\n"
        self.assertEqual(self.add(head + "mpich,8,1,3\nmpich,64,1,\n"),
                         (1, [("chorale", "8", "1", "wrong elements"), ("chorale", "64", "1", "not checked")]))

    def test_sizes_that_were_not_printed_are_rows(self):
        code, rows = self.add("system,bytes,time_us,wrong\nmpich,8,1,0\n", 137)
        self.assertEqual((code, rows), (1, [("chorale", "8", "1", ""), ("chorale", "64", "", "failed with exit code 137")]))

    def test_silence_is_a_failure(self):
        code, rows = self.add("", 0)
        self.assertEqual((code, [row[3] for row in rows]), (1, ["it printed no row"] * 2))

    def test_exit_code_with_all_rows_is_a_failure(self):
        code, rows = self.add("system,bytes,time_us,wrong\nmpich,8,1,0\nmpich,64,1,0\n", 1)
        self.assertEqual((code, rows[-1][3]), (1, "failed with exit code 1"))

    def test_rows_gather(self):
        self.add("system,bytes,time_us,wrong\nmpich,8,1,0\n", sizes="8")
        code, rows = self.add("system,bytes,time_us,wrong\nmpich,64,1,0\n", sizes="64")
        self.assertEqual((code, len(rows)), (0, 2))

    def test_usage(self):
        self.assertEqual(self.call("add").returncode, 2)
        self.assertEqual(self.call("tables").returncode, 2)


class Training(Folder):
    def table(self, moved):
        """64 images of 224 pixels: 1000 images/s of ours, 800 of PyTorch's."""
        columns = ["started", "round", "system", "image_size", "batch", "threads", "workers", "steps", "precision",
                   "images_per_s", "bytes_moved_per_step", "reason", "version", "load", "machine"]
        rows = [["2026-01-02T030405", 1, system, 224, 64, 1, 1, 9, "bf16", speed, bytes_moved, "", "V", "0.1", "M"]
                for system, speed, bytes_moved in (("chorale", 1000, moved), ("PyTorch, bf16", 800, ""))]
        path = self.path("rows.csv", "\n".join(",".join(f'"{cell}"' for cell in row) for row in [columns] + rows) + "\n")
        ceilings = self.path("ceilings.csv", "card,bf16_tflops,copy_gb_per_s\nC,100,4000\n")
        done = self.call("training", path, "--ceilings=" + ceilings)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_shares_of_both_ceilings(self):
        text = self.table(64 * 10**9)  # a step moves 64 GB, 15.625 steps a second: 1000 GB/s
        # 2 (3 x 4.09 - 0.12) = 24.3 GFLOP an image
        self.assertIn("| 224 | 64 | chorale | 24.3 | 24.3 % | 1000 | 25 % |", text)
        self.assertIn("| 224 | 64 | PyTorch, bf16 | 19.44 | 19.4 % | - | - |", text)

    def test_bytes_that_nobody_has_counted(self):
        self.assertIn("| 224 | 64 | chorale | 24.3 | 24.3 % | - | - |", self.table(""))

    def test_bytes_of_a_summary_come_into_the_row(self):
        rows = self.path("from.csv", "image_size,batch,threads,steps,images_per_s,bytes_moved_per_step\n224,64,1,9,1000,5000\n")
        to = self.path("to.csv")
        done = self.call("add", "--to=" + to, "--from=" + rows, "--exit=0", "system=chorale", "image_size=224", "round=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(to, newline="", encoding="utf-8") as file:
            self.assertEqual([row["bytes_moved_per_step"] for row in csv.DictReader(file)], ["5000"])


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    print(f"{result.testsRun} checks")
    sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)
