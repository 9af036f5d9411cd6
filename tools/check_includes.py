#!/usr/bin/env python3
"""Fails when a folder under src/ includes one below it, or a torch-free folder includes torch (the order is that of CMakeLists.txt), and
when two headers have one name, or two types of one namespace, tests included: the linker would take one's inline functions for the other's."""
import collections
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent


def faults(root):
    order = re.findall(r"^tutti_(?:folder|command)\((?:tutti )?(\w+)(.*)", (root / "CMakeLists.txt").read_text(), re.M)
    names = [name for name, _ in order]
    torch_free = {name for name, rest in order if "TORCH" not in rest and name != "app"}
    for folder in names:
        for path in sorted((root / "src" / folder).rglob("*.[ch]*")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                include = re.match(r'\s*#\s*include\s*(["<])([^">]+)', line)
                if not include:
                    continue
                where, target = f"{path.relative_to(root)}:{number}", include[2]
                first = target.split("/")[0]
                if include[1] == '"' and first in names and names.index(first) > names.index(folder):
                    yield f"{where}: {folder} may not use {first}, which stands below it"
                if folder in torch_free and first in ("ATen", "c10", "torch"):
                    yield f"{where}: {folder} is torch-free but includes {target}"
                if target in ("torch/torch.h", "ATen/ATen.h"):
                    yield f"{where}: include the per-operator headers instead of {target}"


def twice(root):
    headers, types = collections.defaultdict(list), collections.defaultdict(list)
    for path in sorted([*(root / "src").rglob("*.h"), *(root / "tests").rglob("*.h")]):
        where = str(path.relative_to(root))
        headers[path.name].append(where)
        space = ""
        for line in path.read_text().splitlines():
            opened = re.match(r"namespace ([\w:]+) \{", line)
            made = re.match(r"(?:struct|class|enum class|enum) (\w+)[^;]*\{", line)
            if opened:
                space = opened[1]
            elif line.startswith("}  // namespace"):
                space = ""
            elif made and space != "tutti::TUTTI_ISA":
                types[f"{space}::{made[1]}"].append(where)
    for name, places in [*headers.items(), *types.items()]:
        if len(set(places)) > 1:
            yield f"{name} is in {' and in '.join(places)}"


if __name__ == "__main__":
    tree = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root
    found = [*faults(tree), *twice(tree)]
    print("\n".join(found) or "the order of the folders holds, and no name is there twice")
    sys.exit(1 if found else 0)
