"""Random jobs on random layouts, some stopped and resumed on another one: how many end with one rank's hash. The test program that
`./tutti test` runs for 20 cases goes on here for minutes, with a seed of its own; a case that differs prints how to run it again."""
import os
import random
import re
import subprocess
import sys

from rows import BIN

SECONDS = 45  # for every pair that is asked for: 5 minutes by default
NAMES = ["chaos: random jobs and layouts with one rank's hash", "chaos: of them resumed on another layout"]


def run(table):
    wanted = [name for name in NAMES if table.wants(name)]
    if not wanted:
        return
    seed = os.environ.get("TUTTI_TEST_SEED") or str(random.randrange(1, 10**9))
    environment = {**os.environ, "TUTTI_TEST_SEED": seed, "TUTTI_TEST_SECONDS": str(SECONDS * table.pairs)}
    done = subprocess.run([BIN / "ranks_random_jobs_test", "--gtest_filter=*/0"], env=environment, capture_output=True, text=True)
    found = re.search(r"seed \d+: (\d+) of (\d+) equal, (\d+) of (\d+) resumed", done.stdout)
    if not found:
        for name in wanted:
            table.missing(name, 1, done.stdout + done.stderr)
        return
    counts = [int(n) for n in found.groups()]
    for name, equal, tried in zip(NAMES, counts[::2], counts[1::2]):
        if name in wanted and tried > 0:
            table.row(name, equal, tried, "cases", [equal / tried], 1, f"seed {seed}")
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
