#!/usr/bin/env python3
"""usage: tools/check_code_paths.py BUILD. Fails when an object of a *.simd.cc file defines an inline function that other objects may have,
too: the linker keeps one of them, and a processor would run what was compiled for a better one."""
import pathlib
import re
import subprocess
import sys


def faults(build):
    objects = sorted(build.rglob("*.simd.*.cc.o"))
    if not objects:
        yield f"{build}: no objects of *.simd.cc files"
    for path in objects:
        own = f"tutti::isa_{path.name.split('.')[2]}::"
        symbols = subprocess.run(["nm", "-C", path], check=True, capture_output=True, text=True).stdout
        for line in symbols.splitlines():
            weak = re.match(r"[0-9a-f]+ [WVu] (.*)", line)
            if weak and own not in weak[1]:
                yield f"{path.relative_to(build)}: defines {weak[1]}, which other objects may define for another processor"


found = list(faults(pathlib.Path(sys.argv[1])))
print("\n".join(found), end="\n" if found else "")
sys.exit(bool(found))
