#!/usr/bin/env python3
"""Runs clang-tidy on the files of src/, bench/ and examples/ whose content, project headers, flags or checks changed since they last passed.

usage: tidy.py BUILD_DIR. What passed is remembered under .deps/tidy, by the hash of all that could change the verdict.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
passed = root / ".deps" / "tidy"


def project_headers(path, seen):
    """The project's own headers that a file includes, directly or not."""
    for target in re.findall(r'#\s*include\s*"([^"]+)"', path.read_text(errors="replace")):
        for base in (root / "src", root / "tests", root / "include", path.parent):
            header = base / target
            if header.is_file() and header not in seen:
                seen.add(header)
                project_headers(header, seen)
                break
    return seen


def key(path, command):
    digest = hashlib.sha256((root / ".clang-tidy").read_bytes())
    for part in [path, *sorted(project_headers(path, set()))]:
        digest.update(part.read_bytes())
    digest.update(re.sub(r"\s-(MF|MT|o|c)\s+\S+", "", command).replace(str(root), "").encode())
    return digest.hexdigest()


def check(entry, build):
    path = pathlib.Path(entry["file"])
    stamp = passed / key(path, entry["command"])
    if stamp.exists():
        return path, None
    result = subprocess.run(["clang-tidy-16", "-p", build, "--quiet", str(path)], capture_output=True, text=True)
    if result.returncode == 0 and "warning:" not in result.stdout:
        stamp.touch()
        return path, ""
    return path, result.stdout + ("" if "error:" in result.stdout else result.stderr[-2000:])


def main():
    build = sys.argv[1]
    passed.mkdir(parents=True, exist_ok=True)
    entries = {}
    for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        # A test that is wrong fails; reading all of ATen once more for each of them would double the time from nothing.
        skipped = (pathlib.Path(build).resolve(), root / "tests")
        if path.is_relative_to(root) and not any(path.is_relative_to(folder) for folder in skipped):
            entries.setdefault(path, entry)
    faults = checked = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, output in pool.map(lambda e: check(e, build), entries.values()):
            checked += output is not None
            if output:
                faults += 1
                print(output)
    print(f"clang-tidy: {len(entries)} files, {checked} read, {faults} with faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
