"""Rows of the bench tables, and resident processes that take turns."""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / ".deps" / "peers"
# An unpacked bundle has its programs next to the bench.
BIN = ROOT / "bin" if (ROOT / "bin" / "tutti").exists() else ROOT / "build" / "bin"


class Resident:
    """A process group that answers lines with lines of JSON and is stopped (SIGSTOP) while it is not asked."""

    def __init__(self, name, command, env=None):
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            start_new_session=True, env={**os.environ, **(env or {})}, cwd=ROOT)

    def ask(self, line):
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
            while True:
                answer = self.process.stdout.readline()
                if not answer:
                    self.errors.seek(0)
                    raise RuntimeError(f"{self.name} ended: {self.errors.read().strip()[-600:]}")
                if answer.startswith("{"):
                    return json.loads(answer)
        except BrokenPipeError:
            self.errors.seek(0)
            raise RuntimeError(f"{self.name} ended: {self.errors.read().strip()[-600:]}") from None
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def close(self):
        self._signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def torchrun(ranks, *script):
    """A torchrun command; the port is free because each call takes another one."""
    torchrun.port = getattr(torchrun, "port", 29600 + os.getpid() % 300) + 1
    return [PEERS / "bin/torchrun", f"--master-port={torchrun.port}", f"--nproc-per-node={ranks}", *script]


PEER_ENV = {
    "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_EXTENSIONS_DIR": str(ROOT / ".deps/peers-extensions"), "PATH": f"{PEERS}/bin:{os.environ['PATH']}",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


class Table:
    HEAD = f"{'':56} {'ours':>11} {'peer':>11} {'':9} {'ratio':>6}  {'spread':>13} {'target':>6}"

    def __init__(self, pairs, only=""):
        self.pairs, self.only, self.rows = pairs, only, []

    def wants(self, name):
        return self.only in name

    def row(self, name, ours, peer, unit, ratios, target, note="", of=statistics.median):
        ratio = of(ratios)
        low, high = sorted(ratios)[len(ratios) // 10], sorted(ratios)[-1 - len(ratios) // 10]
        met = ratio >= target
        self.rows.append({"name": name, "ours": ours, "peer": peer, "unit": unit, "ratio": round(ratio, 4),
                          "spread": [round(low, 4), round(high, 4)], "target": target, "met": met, **({"note": note} if note else {})})
        print(f"{name:56} {ours:11.2f} {peer:11.2f} {unit:9} {ratio:6.2f}  {low:5.2f} .. {high:5.2f} {target:6.2f} "
              f"{'met' if met else 'NOT MET'} {note}", flush=True)

    def missing(self, name, target, reason):
        reason = " ".join(str(reason).split())[-300:]
        self.rows.append({"name": name, "target": target, "met": False, "reason": reason})
        print(f"{name:56} not measured: {reason}", flush=True)

    def compare(self, name, ours, peer, target, unit="us"):
        """ours() and peer() return costs (smaller is better), called in turns."""
        a, b = [], []
        try:
            for _ in range(self.pairs):
                a.append(ours())
                b.append(peer())
        except (RuntimeError, OSError) as error:
            return self.missing(name, target, error)
        self.row(name, statistics.median(a), statistics.median(b), unit, [y / x for x, y in zip(a, b)], target)
        return a, b
