"""Terms beside the main loss, and the clock of the schedule: what does DDP make of them, and who predicts it?

    python -m experiments run other_terms

Set-up. Two Gloo processes with DDP, float64, windows of two microsteps: a router with its load-balancing loss (unequal
and equal cells); a policy whose rewards are whitened; a student with cross-entropy and a KL over rows of its own; a
linear model whose learning rate follows LambdaLR, with one update that overflows.

Reference. One process with the same weights and everything at once, by autograd; for the clock a loop over updates.

What is compared. The reduced gradient of every way (of the clock, rates and final weights) with the reference: one way
of each is right, the rest must miss it. And every way, right or wrong, with batch_statistics, loss_terms or
schedule_clock: the weights that these give to the single outputs, put through one process, have to give the measured
gradient to 1e-12. accelerate's own scheduler is measured where it is installed.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, cast

from samestep.app.evidence.bags import DIFFERS, Control, Json, Result, Row, Text
from samestep.experiments.measured import environment
from samestep.experiments.other_terms import balance, clock, terms, whitening
from samestep.experiments.other_terms.windows import MICROSTEPS, RANKS
from samestep.experiments.ranks.world import World
from samestep.experiments.results import control, result

QUESTION: Text = {
    "zh": "负载均衡、白化、另有数量的 KL、学习率的时钟：多进程里哪种写法还是同一次更新？",
    "en": "Balance loss, whitening, a KL with its own count, the schedule's clock: which way is still the same update?",
}
PROCESSES = 2
SCOPE: Text = {
    "zh": "CPU、Gloo、torch 2.13、float64，每种一个很小的模型，两个 rank、每个窗口两个微步。"
    "路由只取一个专家；不涉及容量、丢弃的 token、NCCL 与 FSDP。",
    "en": "CPU, Gloo, torch 2.13, float64, one very small model for each, two ranks and windows of two microsteps. "
    "Routing takes one expert; says nothing of capacities, dropped tokens, NCCL or FSDP.",
}
CASES: dict[str, Text] = {
    "unequal": {"zh": "负载均衡，单元格大小不等", "en": "load balancing, unequal cells"},
    "equal": {"zh": "负载均衡，单元格大小相等", "en": "load balancing, equal cells"},
    "rewards": {"zh": "奖励的白化", "en": "whitened rewards"},
    "terms": {"zh": "交叉熵与 KL，各有各的数量", "en": "cross-entropy and KL, each with its own count"},
    "schedule": {"zh": "学习率的时钟，跳过一次更新", "en": "the clock of the schedule, one update skipped"},
}
MODULES: Mapping[str, ModuleType] = {
    "unequal": balance,
    "equal": balance,
    "rewards": whitening,
    "terms": terms,
    "schedule": clock,
}
"""What measures a case on a rank (`measure`), and what compares the ranks with the rest (`rows`)."""
PATHS: dict[str, Text] = {
    **{f"balance_{name}": title for name, title in balance.TITLES.items()},
    **{f"whitening_{name}": title for name, title in whitening.TITLES.items()},
    **{f"kl_{name}": recipe.title for name, recipe in terms.RECIPES.items()},
    **{f"clock_{name}": title for name, title in clock.TITLES.items()},
}


def run(world: World) -> Result | None:
    """All cases; two ranks, whatever the size of the world."""
    if world.size < RANKS:
        raise ValueError("other_terms needs two processes")
    group = world.first(RANKS)
    mine: dict[str, Any] = {}
    for case, title in CASES.items() if group else ():
        world.step(f"other_terms: {title['en']}")
        mine[case] = cast(Any, MODULES[case]).measure(case, world.rank, group)
    everybody = world.gather(mine)[:RANKS]
    if world.rank:
        return None
    rows: list[Row] = []
    for case, module in MODULES.items():
        rows += cast(Any, module).rows(case, [found[case] for found in everybody])
    return result(
        __name__,
        PROCESSES,
        question=QUESTION,
        scope=SCOPE,
        setup=_setup(),
        cases=CASES,
        paths=PATHS,
        rows=rows,
        controls=controls(rows),
        environment=environment(),
        command=f"python -m experiments run {__name__.rpartition('.')[2]}",
        not_measured=clock.absent([found["schedule"] for found in everybody]),
    )


def _setup() -> dict[str, Json]:
    return {
        "ranks": RANKS,
        "microsteps": MICROSTEPS,
        "tokens": {case: [list(own) for own in sizes] for case, sizes in balance.CASES.items()},
        "experts": balance.EXPERTS,
        "rewards": [[list(cell) for cell in own] for own in whitening.REWARDS],
        "units": [[list(own) for own in counts] for counts in terms.COUNTS],
        "coefficients": list(terms.COEFFICIENTS),
        "clock": {
            "window": clock.WINDOW,
            "microbatches": clock.BATCHES,
            "epochs": clock.EPOCHS,
            "skipped": clock.SKIPPED,
            "warmup": clock.WARMUP,
            "total": clock.TOTAL,
            "rate": clock.BASE,
        },
    }


def controls(rows: list[Row]) -> list[Control]:
    """Every wrong way is seen, what is predicted of them is not all alike, and a step was skipped."""
    wrong = [each for each in rows if each["expectation"] == "differs" and "framework" not in each]
    seen = [value for each in wrong for name, value in each["max_abs_difference"].items() if name != "calculator"]
    multiples = {
        round(multiple, 9) for each in rows for multiple in cast(list[float], each["values"].get("multiples", []))
    }
    own = next(each for each in rows if each["path"] == "clock_per_update")
    attempts = len(cast(list[Json], own["values"]["rates"]))
    return [
        control(
            "wrong_ways_differ",
            {"zh": "每种错误的做法都看得出来", "en": "every wrong way is seen to be wrong"},
            all((value or 0.0) > DIFFERS for value in seen),
            ways=len(wrong),
        ),
        control(
            "multiples",
            {"zh": "预言了不同的倍数", "en": "different multiples are predicted"},
            len(multiples) > 4,
            multiples=cast(Json, sorted(multiples)),
        ),
        control(
            "skipped",
            {"zh": "确有一次更新因溢出而跳过", "en": "one update was skipped, for its overflow"},
            own["values"]["steps"] == attempts - 1,
            attempts=attempts,
            updates=own["values"]["steps"],
        ),
    ]
