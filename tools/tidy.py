#!/usr/bin/env python3
"""Runs clang-tidy on the files of src/, bench/ and examples/ whose content, project headers, flags or checks changed since they last passed.

usage: tidy.py BUILD_DIR [--record]
What passed is remembered under .deps/tidy, by the hash of all that could change the verdict. A fresh clone knows the commit of tools/tidy.base, at which all
files passed: reading them all again takes a quarter of an hour. --record writes the present commit there, after all files passed.
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
base = root / "tools" / "tidy.base"


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


def git(*arguments):
    result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    return result.stdout.splitlines() if result.returncode == 0 else None


def changed_since_base():
    """Paths that differ from the commit at which all passed; None: that is not known, or what decides over all files is among them."""
    changed = git("diff", "--name-only", base.read_text().strip()) if base.exists() else None
    if changed is None:
        return None
    changed += git("ls-files", "--others", "--exclude-standard") or []
    if any(p in (".clang-tidy", "CMakeLists.txt", "tools/tidy.py") or p.startswith("cmake/") for p in changed):
        return None
    return {root / p for p in changed}


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
    changed = None if "--record" in sys.argv else changed_since_base()
    if changed is not None:
        entries = {path: e for path, e in entries.items() if ({path} | project_headers(path, set())) & changed}
    faults = checked = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, output in pool.map(lambda e: check(e, build), entries.values()):
            checked += output is not None
            if output:
                faults += 1
                print(output)
    since = "of all" if changed is None else "changed since " + base.read_text().strip()[:7]
    print(f"clang-tidy: {len(entries)} files {since}, {checked} read, {faults} with faults")
    if "--record" in sys.argv and not faults:
        if git("status", "--porcelain"):
            sys.exit("clang-tidy: not recorded: commit first, so that what passed has a name")
        base.write_text("\n".join(git("rev-parse", "HEAD")) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
