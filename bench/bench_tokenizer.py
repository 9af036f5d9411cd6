"""The tokenizer compared with the tokenizers package on one core: encoding and training, on the King James text and on source code."""
import pathlib
import statistics
import subprocess
import sysconfig
import tempfile

from rows import BIN, ROOT, Resident

CHECKS = ROOT / ".deps" / "checks"
KJV = ROOT / "data" / "kjv.txt"
SOURCE_BYTES = 3 << 20


def source_text():
    """Python's own library: letters, digits, punctuation, indentation, and many words that occur once."""
    text, size = [], 0
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        try:
            text.append(path.read_bytes().decode())
        except (UnicodeDecodeError, OSError):
            continue
        size += len(text[-1])
        if size > SOURCE_BYTES:
            break
    return "".join(text)


def speeds(table, name, tutti, package, line, megabytes, target):
    """MB/s of both, in turns; they must agree on the tokens and the merges."""
    if not table.wants(name):
        return
    ours, peer, way = [], [], ""
    try:
        for _ in range(table.pairs):
            a, b = tutti.ask(line), package.ask(line)
            for made in set(a) - {"seconds"}:
                if a[made] != b[made]:
                    raise RuntimeError(f"{made}: {a[made]} of ours, {b[made]} of the package")
            ours.append(megabytes / a["seconds"])
            peer.append(megabytes / b["seconds"])
            way = b.get("way", "")
    except (RuntimeError, OSError) as error:
        return table.missing(name, target, error)
    table.row(name, statistics.median(ours), statistics.median(peer), "MB/s", [x / y for x, y in zip(ours, peer)], target, way)


def compare(table, folder, text, vocab, what):
    names = [f"tokenizer encode : tokenizers, {what}, vocab {vocab}", f"tokenizer train : tokenizers, {what}, vocab {vocab}"]
    if not any(table.wants(name) for name in names):
        return
    tokenizer, megabytes = f"{folder}/{vocab}.json", text.stat().st_size / 1e6
    try:
        subprocess.run([BIN / "tutti", "tokenize", text, "--vocab", str(vocab), "-o", tokenizer], check=True, capture_output=True, text=True)
        with Resident("tutti", [BIN / "tutti-bench-tokenize", text, tokenizer]) as tutti, \
                Resident("tokenizers", [CHECKS / "bin/python", "bench/peers/bpe.py", text, tokenizer]) as package:
            tutti.ask("encode")
            speeds(table, names[0], tutti, package, "encode", megabytes, 1)
            speeds(table, names[1], tutti, package, f"train {vocab}", megabytes, 1)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        for name in names:
            table.missing(name, 1, getattr(error, "stderr", "") or error)


def run(table):
    setup = subprocess.run([ROOT / "tools" / "checks_setup"], capture_output=True, text=True)
    if setup.returncode != 0:
        print(f"the tokenizers package could not be installed: {setup.stderr.strip()[-400:]}")
    with tempfile.TemporaryDirectory(prefix="tutti-tokenize-") as folder:
        compare(table, folder, KJV, 4096, "King James")
        source = pathlib.Path(folder) / "source.txt"
        source.write_bytes(source_text().encode())
        compare(table, folder, source, 50257, "Python's library")
