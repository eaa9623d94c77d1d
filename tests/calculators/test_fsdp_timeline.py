"""Facts about a step of FSDP; the independent methods are a real FSDP2 run on Gloo processes, whose storages are
measured moment by moment, and a small machine of named allocations."""

import json
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.fsdp_timeline import STATES
from samestep.app.evidence.bags import Json
from samestep.app.mathematics.element_size import BYTES
from samestep.experiments.ranks.launch import Job, launch, workplace
from tests.kit import Asked, Body, Program

asked = Asked("fsdp_timeline")
answer, view, view_refusal = asked.answer, asked.view, asked.view_refusal

KINDS = (
    "sharded",
    "optimizer",
    "gathered",
    "gather_buffers",
    "full_gradients",
    "reduce_buffers",
    "sharded_gradients",
)


# --- against FSDP2 itself

PLAIN = {"sharded_dtype": "float32", "param_dtype": "float32", "reduce_dtype": "float32"}
MIXED = {"sharded_dtype": "float32", "param_dtype": "bfloat16", "reduce_dtype": "float32"}
SMALL = {"layers": 3, "parameters": [1000, 2000, 4000], "root_parameters": 500, "ranks": 2}
UNEVEN = {"layers": 4, "parameters": [1001, 37, 4003, 2], "root_parameters": 501, "ranks": 4}


def case(shape: Body, dtypes: Body, policy: bool | int, prefetch: str = "backward", optimizer: str = "adamw") -> Body:
    return {**shape, **dtypes, "reshard_after_forward": policy, "prefetch": prefetch, "optimizer": optimizer}


REAL = [
    case(SMALL, PLAIN, True),
    case(SMALL, PLAIN, False),
    case(SMALL, MIXED, True),
    case(SMALL, MIXED, False, "both", "sgd_momentum"),
    case(SMALL, MIXED | {"reduce_dtype": "bfloat16"}, True, "off", "sgd"),
    case(SMALL, PLAIN, True, "both"),
    case(SMALL | {"root_parameters": 0}, PLAIN, True),
    case(SMALL | {"root_parameters": 0}, MIXED, True, "off"),
    case(UNEVEN, MIXED, True),
    case(UNEVEN, MIXED, 2),
    case(UNEVEN, PLAIN, 2, "off"),
    case(UNEVEN, PLAIN, False),
    case(SMALL | {"layers": 1, "parameters": [64]}, PLAIN, True),
]


WINDOW = [[1.0, 2.0, 4.0], [3.0, 6.0, 12.0], [5.0, 10.0, 20.0], [7.0, 14.0, 28.0]]


@pytest.fixture(scope="module")
def launched() -> Iterator[dict[str, Any]]:
    """What FSDP2 did on four processes, one launch for all."""
    options = {"cases": cast(Json, REAL), "window": cast(Json, WINDOW)}
    with workplace() as folder:
        launch(Job(["tests.calculators.gloo_fsdp"], 4, options=options), folder)
        yield json.loads((folder / "gloo_fsdp" / "result.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def real(launched: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """For each case what every rank of FSDP2 held and called."""
    answers: list[list[dict[str, Any]]] = launched["answers"]
    return answers


def test_hybrid_sharding_reduces_in_groups_and_between_them_as_no_sync_timeline_says(launched: dict[str, Any]) -> None:
    said = Asked("no_sync_timeline").answer(
        gradients=WINDOW, wrapper="hsdp", replica_groups=2, parameters=[4, 6], dtype="float32"
    )["schemes"]
    for program, ranks in launched["programs"].items():
        told = [event for event in said[program]["events"] if event["kind"] == "backward"]
        for rank, found in enumerate(ranks):
            assert found == [[event["grad"][rank], event["collectives"]] for event in told], program


def test_reduce_dtype_does_not_cover_the_reduction_over_tensor_parallel_ranks(launched: dict[str, Any]) -> None:
    """Its own would give 257: parts of a norm's gradient are added in the type of the gradient."""
    in_bf16, in_float32 = (
        Asked("reduction_precision").answer(values=[256, 1], ranks=2, dtype=dtype)["placements"]["sum_then_divide"][
            "reductions"
        ]["rounded_once"]["sum"]
        for dtype in ("bfloat16", "float32")
    )
    assert (launched["norm"], in_float32) == (in_bf16, 257)


def as_measured(moment: dict[str, Any]) -> dict[str, Any]:
    """A moment without what cannot be seen from outside: whether a gather is ahead of its use, and the sum."""
    event = "gather" if moment["event"] == "prefetch" else moment["event"]
    return {**{name: moment[name] for name in ("phase", "group", *KINDS)}, "event": event}


def padding(body: Body, rank: int) -> int:
    """Elements by which a rank's shards fall short of those of rank 0: optimizer states are as long as the shards."""
    short = 0
    for elements in (*body["parameters"], body["root_parameters"]):
        shard = -(-elements // body["ranks"])
        short += shard - min(shard, max(0, elements - rank * shard))
    return short


@pytest.mark.parametrize("number", range(len(REAL)))
def test_every_moment_is_what_the_storages_of_a_real_fsdp2_step_add_up_to(
    real: list[list[dict[str, Any]]], number: int
) -> None:
    body = REAL[number]
    moments = [as_measured(moment) for moment in answer(**body)["moments"]]
    for r, rank in enumerate(real[number]):
        less = padding(body, r % body["ranks"]) * STATES[body["optimizer"]] * 4
        expected = [moment | {"optimizer": moment["optimizer"] - less} for moment in moments]
        assert [as_measured(moment) for moment in rank["moments"]] == expected


@pytest.mark.parametrize("number", range(len(REAL)))
def test_fsdp2_calls_as_many_collectives_and_sends_as_many_bytes(real: list[list[dict[str, Any]]], number: int) -> None:
    got = answer(**REAL[number])
    summary = got["schemes"][{True: "reshard", False: "keep"}.get(REAL[number]["reshard_after_forward"], "group")]
    gathers = summary["forward_gathers"]["count"] + summary["backward_gathers"]["count"]
    for rank in real[number]:
        assert rank["calls"] == {
            "_allgather_base_": gathers,
            "_reduce_scatter_base_": summary["reduce_scatters"]["count"],
            "allreduce_": 0,
        }
        assert rank["sent"] == summary["sent_per_rank"]


# --- against named allocations


class Machine:
    """Memory as a set of named blocks; what a program of gathers and reductions allocates and frees, by name."""

    def __init__(self, body: Body) -> None:
        self.blocks: dict[str, int] = {}
        self.peak = 0
        self.gathers = self.sent = 0
        self.ranks: int = body["ranks"]
        sizes = body["parameters"] if len(body["parameters"]) > 1 else body["parameters"] * body["layers"]
        self.sizes: dict[Any, int] = dict(enumerate(sizes))
        if body["root_parameters"]:
            self.sizes = {"root": body["root_parameters"], **self.sizes}
        self.width = {kind: BYTES[body[f"{kind}_dtype"]] for kind in ("sharded", "param", "reduce", "optimizer")}
        for name in self.sizes:
            self.new(f"shard {name}", self.shard(name) * self.width["sharded"])
            for state in range({"adamw": 2, "sgd_momentum": 1, "sgd": 0}[body["optimizer"]]):
                self.new(f"state {state} {name}", self.shard(name) * self.width["optimizer"])

    def shard(self, name: Any) -> int:
        return int((self.sizes[name] + self.ranks - 1) // self.ranks)

    def new(self, block: str, size: int) -> None:
        assert block not in self.blocks
        self.blocks[block] = size
        self.peak = max(self.peak, sum(self.blocks.values()))

    def free(self, prefix: str) -> None:
        self.blocks = {block: size for block, size in self.blocks.items() if not block.startswith(prefix)}

    def gather(self, name: Any, group: int = 0) -> None:
        if f"flat {name};" in self.blocks or f"full {name};" in self.blocks:
            return
        group = group or self.ranks
        whole = self.shard(name) * self.ranks * self.width["param"]
        self.new(f"flat {name};", whole)
        self.gathers += 1
        self.sent += whole * (group - 1) // group

    def copy_out(self, name: Any) -> None:
        self.new(f"full {name};", self.shard(name) * self.ranks * self.width["param"])

    def reduce(self, name: Any) -> None:
        self.free(f"full {name};")
        self.free("reduce ")
        size = self.shard(name) * self.ranks * self.width["reduce"]
        self.new(f"reduce {name};", size)
        self.sent += size * (self.ranks - 1) // self.ranks
        self.free(f"gradient {name};")
        self.new(f"reduced {name};", self.shard(name) * self.width["sharded"])


def run(body: Body) -> Machine:
    """One step, told in the words of FSDP2's documentation."""
    m = Machine(body)
    layers = [name for name in m.sizes if name != "root"]
    policy, ahead = body["reshard_after_forward"], body["prefetch"]
    order = [*(["root"] if "root" in m.sizes else []), *layers]
    for name in order:
        m.gather(name)
        for other in order:  # the buffer of the one before is free once this gather is complete
            if other != name and (f"full {other};" in m.blocks or f"done {other};" in m.blocks):
                m.free(f"flat {other};")
        m.copy_out(name)
        if ahead == "both" and name != "root" and name != layers[-1]:
            m.gather(name + 1)
        if name != "root" and policy is not False:
            m.free(f"full {name};")
            m.new(f"done {name};", 0)
            if policy is not True:
                m.new(f"kept {name};", m.shard(name) * m.ranks // policy * m.width["param"])
    m.free("flat ")
    group = m.ranks if isinstance(policy, bool) else policy
    if "root" in m.sizes:
        if ahead != "off":
            m.gather(layers[-1], group)
        m.new("gradient root;", m.sizes["root"] * m.width["param"])
    for name in reversed(layers):
        m.gather(name, group)
        if f"flat {name};" in m.blocks:
            m.copy_out(name)
            m.free(f"flat {name};")
        m.free(f"kept {name};")
        if ahead != "off" and name > 0:
            m.gather(name - 1, group)
        m.new(f"gradient {name};", m.sizes[name] * m.width["param"])
        m.reduce(name)
    if "root" in m.sizes:
        m.reduce("root")
    m.free("reduce ")
    return m


WIDTHS = st.sampled_from(["float32", "bfloat16", "float64", "float8_e4m3fn"])


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    ranks = draw(st.sampled_from([2, 3, 4, 6, 8]))
    layers = draw(st.integers(1, 6))
    sizes = st.integers(1, 5000)
    divisors = [k for k in range(2, ranks) if ranks % k == 0]
    return {
        "layers": layers,
        "parameters": draw(st.lists(sizes, min_size=layers, max_size=layers) | sizes.map(lambda size: [size])),
        "root_parameters": draw(st.integers(0, 5000)),
        "ranks": ranks,
        "reshard_after_forward": draw(st.sampled_from([True, False, *divisors])),
        "prefetch": draw(st.sampled_from(["off", "backward", "both"])),
        **{f"{kind}_dtype": draw(WIDTHS) for kind in ("sharded", "param", "reduce", "optimizer")},
        "optimizer": draw(st.sampled_from(["adamw", "sgd_momentum", "sgd"])),
    }


def chosen(got: dict[str, Any], body: Body) -> dict[str, Any]:
    found: dict[str, Any] = got["schemes"][{True: "reshard", False: "keep"}.get(body["reshard_after_forward"], "group")]
    return found


@settings(deadline=None, max_examples=200)
@given(bodies())
def test_peak_gathers_and_bytes_are_those_of_the_machine_of_named_blocks(body: Body) -> None:
    got, machine = answer(**body), run(body)
    summary = chosen(got, body)
    assert summary["peak_bytes"] == machine.peak
    assert summary["forward_gathers"]["count"] + summary["backward_gathers"]["count"] == machine.gathers
    assert summary["sent_per_rank"] == machine.sent
    assert summary["reduce_scatters"]["count"] == len(machine.sizes)


@settings(deadline=None)
@given(bodies())
def test_a_step_ends_where_it_began_and_no_kind_is_ever_negative(body: Body) -> None:
    moments = answer(**body)["moments"]
    first, last = ({kind: moment[kind] for kind in KINDS} for moment in (moments[0], moments[-1]))
    assert first == last
    assert all(moment[kind] >= 0 for moment in moments for kind in KINDS)
    assert all(moment["total"] == sum(moment[kind] for kind in KINDS) for moment in moments)
    assert len({moment["sharded"] + moment["optimizer"] for moment in moments}) == 1


@settings(deadline=None)
@given(bodies())
def test_keeping_the_parameters_never_sends_more_and_a_group_lies_between(body: Body) -> None:
    got = answer(**body)["schemes"]
    assert got["keep"]["sent_per_rank"] <= got["reshard"]["sent_per_rank"]
    assert got["keep"]["backward_gathers"]["count"] == 0
    if "group" in got:
        assert got["keep"]["sent_per_rank"] <= got["group"]["sent_per_rank"] <= got["reshard"]["sent_per_rank"]


@settings(deadline=None)
@given(bodies(), st.integers(1, 12))
def test_equal_layers_need_two_at_a_time_however_many_there_are(body: Body, more: int) -> None:
    """With resharding the gathered part of the peak does not grow with the depth."""
    small = {**body, "parameters": body["parameters"][:1], "layers": 3, "reshard_after_forward": True}
    deep = small | {"layers": 3 + more}

    def most_gathered(got: dict[str, Any]) -> int:
        return max(int(moment["gathered"] + moment["gather_buffers"]) for moment in got["moments"])

    assert most_gathered(answer(**small)) == most_gathered(answer(**deep))


# --- lessons


def test_the_defaults_show_that_the_peak_is_not_the_share_of_one_in_p() -> None:
    got = view()
    assert got["total_parameters"] == 6_738_415_616
    assert got["padding_elements"] == 0
    assert got["start_bytes"] == 6_738_415_616 // 8 * 12  # float32 parameters and two states
    assert got["replicated_bytes"] == 6_738_415_616 * 16
    assert got["selected"] == "reshard"
    reshard, keep = got["schemes"]["reshard"], got["schemes"]["keep"]
    assert got["current"] == reshard
    assert (reshard["peak_phase"], reshard["peak_event"], reshard["peak_group"]) == ("backward", "compute", 2)
    assert got["moments"][got["peak_moment"]]["total"] == reshard["peak_bytes"]
    assert reshard["peak_bytes"] > 1.19 * got["replicated_bytes"] / 8  # an eighth is what the states alone suggest
    assert keep["peak_bytes"] - reshard["peak_bytes"] > 8 * 2**30
    assert reshard["forward_gathers"]["count"] + reshard["backward_gathers"]["count"] == 65
    assert keep["sent_per_rank"] == reshard["sent_per_rank"] - reshard["backward_gathers"]["sent_per_rank"]


def test_the_peak_of_equal_layers_in_closed_form() -> None:
    """Resharding, prefetching, no root: two layers of parameters, the gradients of one, the reduce buffer of the one
    before, and all sharded gradients but the last ones."""
    layers, n, ranks = 10, 4096, 4
    got = answer(layers=layers, parameters=n, root_parameters=0, ranks=ranks, **MIXED)
    states = layers * n // ranks * 12
    peak = max(2 * n * 2 + n * 2 + n * 4 + 4 * done * n // ranks for done in range(1, layers - 1))
    assert got["schemes"]["reshard"]["peak_bytes"] == states + peak
    assert got["schemes"]["reshard"]["peak_group"] == 2


def test_without_the_backward_prefetch_the_peak_is_lower() -> None:
    with_it, without = (answer(layers=8, parameters=1000, root_parameters=0, prefetch=p) for p in ("backward", "off"))
    assert without["schemes"]["reshard"]["peak_bytes"] < with_it["schemes"]["reshard"]["peak_bytes"]
    assert without["schemes"]["reshard"]["sent_per_rank"] == with_it["schemes"]["reshard"]["sent_per_rank"]


def test_a_group_of_k_ranks_lies_between_the_two() -> None:
    got = view(reshard_after_forward="4")
    assert got["selected"] == "group"
    peaks = [got["schemes"][name]["peak_bytes"] for name in ("reshard", "group", "keep")]
    sent = [got["schemes"][name]["sent_per_rank"] for name in ("reshard", "group", "keep")]
    assert peaks == sorted(peaks)
    assert sent == sorted(sent, reverse=True)
    assert got["schemes"]["group"]["backward_gathers"]["sent_per_rank"] == 32 * 202_383_360 * 2 * 3 // 4


# --- refusals and limits


REFUSED_BODIES = [
    ({"layers": 0}, "layers"),
    ({"layers": 257}, "layers"),
    ({"layers": "2.5"}, "layers", "whole"),
    ({"layers": 3, "parameters": [1, 2]}, "parameters", "3 layers"),
    ({"parameters": [1, 0, 3]}, "parameters", "value 2"),
    ({"parameters": []}, "parameters", "at least 1"),
    ({"parameters": True}, "parameters", "numbers"),
    ({"parameters": "1e14"}, "parameters", "at most"),
    ({"root_parameters": -1}, "root_parameters"),
    ({"ranks": 1}, "ranks"),
    ({"ranks": 4097}, "ranks"),
    ({"reshard_after_forward": 3}, "reshard_after_forward", "divide 8"),
    ({"reshard_after_forward": 8}, "reshard_after_forward", "divide 8"),
    ({"reshard_after_forward": 1}, "reshard_after_forward", "divide 8"),
    ({"reshard_after_forward": "sometimes"}, "reshard_after_forward", "true, false"),
    ({"prefetch": "on"}, "prefetch"),
    ({"param_dtype": "int8"}, "param_dtype"),
    ({"optimizer": "lion"}, "optimizer"),
    ({"activations": 1}, "activations"),
]


@pytest.mark.parametrize("entry", REFUSED_BODIES)
def test_fields_are_refused_as_a_body_is(entry: tuple[Body, *tuple[str, ...]]) -> None:
    fields, place, *words = entry
    error = view_refusal(**fields)
    assert error.field == place
    assert all(word in error.en for word in words)


def test_numbers_may_be_written_as_texts_and_lists_in_the_grammar_of_fields() -> None:
    got = view(layers="3", parameters="1e3,2000;3000", root_parameters="0", ranks="2", reshard_after_forward="False")
    assert got["layer_parameters"] == [1000, 2000, 3000]
    assert got["selected"] == "keep"


def test_the_largest_model_is_answered() -> None:
    got = answer(layers=256, parameters=10**13, ranks=4096, prefetch="both")
    assert len(got["moments"]) < 3000


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    layers = source.randint(1, 4)
    return {
        "layers": layers,
        "parameters": source.choice([7, [source.randint(1, 50) for _ in range(layers)]]),
        "root_parameters": source.choice([0, 13]),
        "ranks": 4,
        "reshard_after_forward": source.choice([True, False, 2]),
        "prefetch": source.choice(["off", "backward", "both"]),
        "reduce_dtype": source.choice(["float32", "bfloat16"]),
        "optimizer": source.choice(["adamw", "sgd_momentum", "sgd"]),
    }


PROGRAM = Program(
    prints=["schemes.reshard.peak_bytes", "schemes.keep.sent_per_rank", "peak_moment", "replicated_bytes"],
    planted=("[202383360]", "[202383361]"),
    bodies=any_body,
)
