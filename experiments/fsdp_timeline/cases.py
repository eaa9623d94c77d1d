"""What is run, and what is expected of it: settings of a model that is cut, and right and wrong expectations."""

from typing import Any, NamedTuple, cast

from samestep.app.evidence.bags import Expectation, Text

Body = dict[str, Any]


class Case(NamedTuple):
    """`body`: the calculator's inputs, by which the model is built and cut. `ddp`: replicate it instead."""

    name: str
    title: Text
    body: Body
    ddp: bool = False

    @property
    def ranks(self) -> int:
        return cast(int, self.body["ranks"])

    @property
    def even(self) -> bool:
        return all(size % self.ranks == 0 for size in sizes(self.body))


BASE: Body = {
    "sharded_dtype": "float32",
    "param_dtype": "float32",
    "reduce_dtype": "float32",
    "reshard_after_forward": True,
    "prefetch": "backward",
    "optimizer": "adamw",
}
# Nearly equal, so that the peak lies where the chapter has it; unequal, so that no two expectations tie by chance.
EVEN: Body = BASE | {"layers": 4, "parameters": [2000, 2040, 2080, 2120], "root_parameters": 500}
UNEVEN: Body = BASE | {"layers": 4, "parameters": [1001, 37, 4003, 2], "root_parameters": 501}


def sizes(body: Body) -> list[int]:
    return [*body["parameters"], body["root_parameters"]]


def cases_of(ranks: int) -> list[Case]:
    """On two ranks one change at a time; on more the policies, with padding and bfloat16."""

    def case(name: str, zh: str, en: str, body: Body, ddp: bool = False) -> Case:
        title: Text = {"zh": f"P = {ranks}，{zh}", "en": f"P = {ranks}, {en}"}
        return Case(f"p{ranks}_{name}", title, body | {"ranks": ranks}, ddp)

    low, keep = {"param_dtype": "bfloat16"}, {"reshard_after_forward": False}
    if ranks == 2:
        off, both = {"prefetch": "off"}, {"prefetch": "both"}
        return [
            case("reshard", "float32，前向后释放", "float32, freed after forward", EVEN),
            case("keep", "float32，前向后保留", "float32, kept after forward", EVEN | keep),
            case("no_prefetch", "float32，不预取", "float32, nothing prefetched", EVEN | off),
            case("both", "float32，前向也预取", "float32, prefetched in forward too", EVEN | both),
            case("bfloat16", "bfloat16 计算", "computed in bfloat16", EVEN | low),
            case(
                "bfloat16_reduced", "bfloat16 计算并归约", "computed and reduced in bfloat16",
                EVEN | low | {"reduce_dtype": "bfloat16"},
            ),
            case("ddp", "float32，DDP 而非 FSDP2", "float32, DDP instead of FSDP2", EVEN, ddp=True),
        ]  # fmt: skip
    many = [
        case("reshard", "不整除，前向后释放", "padded, freed after forward", UNEVEN | low),
        case("keep", "不整除，前向后保留", "padded, kept after forward", UNEVEN | low | keep),
    ]
    groups = [count for count in range(2, ranks) if ranks % count == 0]
    for count in groups[:1]:
        body = UNEVEN | low | {"reshard_after_forward": count}
        many.append(case("group", f"不整除，每 {count} 个一组保留", f"padded, kept in groups of {count}", body))
    return many


class Path(NamedTuple):
    """An expectation: the case's settings with a `change`, or none of FSDP's at all.

    `untouched`: what comes out right all the same, wherever the rest is wrong.
    """

    title: Text
    change: Body | None
    untouched: tuple[str, ...] = ()


PATHS: dict[str, Path] = {
    "calculator": Path({"zh": "计算器，设置与运行相同", "en": "the calculator, with the settings of the run"}, {}),
    "kept": Path(
        {"zh": "当作前向后保留各层", "en": "as if the layers were kept after forward"},
        {"reshard_after_forward": False},
        ("at_rest", "at_update"),
    ),
    "resharded": Path(
        {"zh": "当作前向后释放各层", "en": "as if the layers were freed after forward"},
        {"reshard_after_forward": True},
        ("at_rest", "at_update"),
    ),
    "float32": Path(
        {"zh": "当作用 float32 计算", "en": "as if computed in float32"},
        {"param_dtype": "float32"},
        ("at_rest", "at_update", "collectives"),
    ),
    "no_prefetch": Path(
        {"zh": "当作不预取", "en": "as if nothing were prefetched"},
        {"prefetch": "off"},
        ("at_rest", "at_update", "collectives", "sent"),
    ),
    "replicated": Path(
        {"zh": "当作 DDP：每个进程一整份", "en": "as under DDP: everything in full on every process"}, None
    ),
    "share": Path({"zh": "当作每一刻都只有整份的 1/P", "en": "as if it were a P-th of that at all moments"}, None),
    "fsdp": Path({"zh": "当作 FSDP2：前向后释放各层", "en": "as under FSDP2, with the layers freed after forward"}, {}),
}
FOR_DDP = ("replicated", "fsdp")
FOR_FSDP = tuple(name for name in PATHS if name != "fsdp")


def stated(case: Case, name: str) -> tuple[Expectation, dict[str, Expectation]]:
    """What a row must do, and which of its quantities do otherwise; from the settings alone, before anything ran."""
    path, body = PATHS[name], case.body
    kept = body["reshard_after_forward"] is False
    right = path.change is not None and body | path.change == body
    if name == "no_prefetch" and kept:
        right = True  # nothing is gathered in backward
    if case.ddp:
        right = name == "replicated"
    if right:
        return "agrees", {}
    same = set(path.untouched)
    if name == "resharded" and not kept:
        same.add("collectives")  # a group gathers as often, from fewer
    if name == "replicated" and kept and case.even and body["param_dtype"] == "float32":
        same.add("sent")  # an all-reduce is a reduce-scatter and an all-gather
    if name == "share" and case.even:
        same |= {"at_rest", "at_update"}
    return "differs", dict.fromkeys(same, "agrees")
