"""How long a build takes: from nothing, after an edit, and all tests of a built tree. Fixed limits stand in for the peer."""
import os
import shutil
import subprocess
import tempfile
import time

from rows import ROOT

EDITED, TESTS = "src/optim/optimizer.cc", "optim_test"


def timed(command, **options):
    begin = time.monotonic()
    result = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise RuntimeError(result.stdout[-1500:] + result.stderr[-1500:])
    return time.monotonic() - begin


def limited(table, name, limit, measure):
    if not table.wants(name):
        return
    try:
        seconds = measure()
    except RuntimeError as error:
        return table.missing(name, 1, error)
    table.row(name, seconds, limit, "s", [limit / seconds], 1)


def run(table):
    folder = tempfile.mkdtemp(prefix="tutti-build-", dir=ROOT / ".deps")
    environment = {**os.environ, "CCACHE_DISABLE": "1"}
    torch = (ROOT / ".deps/torch").read_text().strip()

    def edit():
        path = ROOT / EDITED
        text = path.read_text()
        try:
            # A new constant, not a comment: ccache would find the object of a file that differs in comments alone.
            path.write_text(text + f"namespace {{ [[maybe_unused]] constexpr long kEdited = {time.time_ns()}; }}\n")
            return timed(f"ninja -C {folder} {TESTS} && {folder}/bin/{TESTS}")
        finally:
            path.write_text(text)

    try:
        limited(table, "full build from nothing, no ccache", 360, lambda: timed(
            f"cmake -G Ninja -S . -B {folder} -DCMAKE_CXX_COMPILER=clang++-16 -DTUTTI_TORCH={torch} && ninja -C {folder}", env=environment))
        limited(table, "edit one .cc, build and run its tests", 30, edit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    limited(table, "./tutti test on a built tree", 360, lambda: timed("./tutti test"))
