"""Idle shares of the pipeline schedules compared with their formulas: real programs and executors over tcp, with blocks that wait instead of
computing. What a stage spends in the vote, the barrier before the update, is said next to it."""
import statistics

from rows import BIN, Resident

FORWARD_MS, STEPS = 30, 5
LIMIT = 2.0  # points
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"]


def rows(table):
    """A row for every schedule on 4 and 8 stages."""
    wanted = {f"schedules: {schedule}, {stages} stages, bubble : its formula": (schedule, stages)
              for stages in (4, 8) for schedule in SCHEDULES}
    wanted = {name: case for name, case in wanted.items() if table.wants(name)}
    if not wanted:
        return
    with Resident("tutti", [BIN / "tutti-bench-schedules"]) as ours:
        for name, (schedule, stages) in wanted.items():
            try:
                answer = ours.ask(f"{schedule} {stages} {2 * stages} {FORWARD_MS} {STEPS}")
            except RuntimeError as error:
                table.missing(name, 1, error)
                continue
            away = [100 * abs(idle - answer["formula"]) for idle in answer["idle"]]
            table.row(name, statistics.median(away), LIMIT, "points", [LIMIT / max(a, 0.01) for a in away], 1,
                      f"idle {100 * statistics.median(answer['idle']):.2f} %, formula {100 * answer['formula']:.2f} %, "
                      f"vote {100 * statistics.median(answer['vote']):.2f} % of the step")
