"""Every program that a chapter prints runs, and shows what the chapter says that it shows.

Here those of chapter 70 and of part B; `test_programs_of_part_a.py` has the others.
"""

import ast
import math
import re

import pytest

from tests.book_claims.chapter_code import CHAPTERS, Ran, chapter, output, programs, run_together


def without_words(code: str) -> str:
    """The program without its comments and texts, which are in the language of the chapter."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


@pytest.mark.parametrize("name", CHAPTERS)
def test_both_languages_print_the_same_programs(name: str) -> None:
    assert list(map(without_words, programs(name, "en"))) == list(map(without_words, programs(name, "zh")))


def numbers(line: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", line)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Every program that starts processes, and those that the exercises ask for."""
    (own,) = programs("70-two-process-verification")
    loop, _ = programs("120-mixed-precision-order")
    division, stepping = ' / scaler["scale"]', "        optimizer.step()"
    assert (own.count("loss_sum(net, cells"), loop.count(division), loop.count(stepping)) == (1, 1, 1)
    late = loop.replace(division, "").replace(stepping, f'        shard.grad /= scaler["scale"]\n{stepping}')
    bypassed = own.replace("loss_sum(net, cells", "loss_sum(net.module, cells").replace("{apart:.1e}", "{apart:.4f}")
    counted = programs("130-sharding")[0]
    mesh, pipeline = programs("135-pipeline-and-mesh")
    named = {
        "own": own,
        "bypassed": bypassed,
        "loop": loop,
        "late": late,
        "counted": counted,
        "repairs": with_both_repairs(counted, drift=False),
        "drifted": with_both_repairs(counted, drift=True),
        "mesh": mesh,
        "mesh_unreduced": without_the_reduction(mesh),
        "pipeline": pipeline,
        "seen": with_a_factor_on_the_layer(programs("140-fsdp-lifecycle")[0]),
        "rounds": with_one_pass_a_round(programs("165-local-updates")[0]),
        "terms": programs("95-more-than-one-term")[1],
        "penalised": with_a_penalty(programs("95-more-than-one-term")[1]),
    }
    return run_together(tmp_path_factory.mktemp("programs"), named)


DRIFTED = """def drifted(name):
    return 2 if {drift} and name == "scale" and dist.get_rank() == 1 else 1

"""


def with_both_repairs(code: str, drift: bool) -> str:
    """The program of chapter 130 as its exercise asks: both repairs, on every rank, with or without a drifted copy."""
    changes = {
        "def how_often": """def every_holder_divides(grads):
    shards = [g for g in grads if isinstance(g, DTensor)]
    copies = [g for g in grads if not isinstance(g, DTensor)]
    return summed(squares(shards) + squares(copies) / P).sqrt()

def how_often""",
        "p.grad = torch.ones_like(p) ": "p.grad = torch.ones_like(p) * drifted(name) ",
        "(this_rank, every_copy, by_placement, get_total_norm)": "(by_placement, every_holder_divides)",
        "        if rank == 0:\n            print(": "        print(rank, ",
    }
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code.replace("def how_often", DRIFTED.format(drift=drift) + "def how_often")


def without_the_reduction(code: str) -> str:
    """The first program of chapter 135 as its exercise asks."""
    line = "        dist.all_reduce(grad, group=ctx.group)\n"
    assert code.count(line) == 1
    return code.replace(line, "")


def with_a_factor_on_the_layer(code: str) -> str:
    """The program of chapter 140 with the line that its exercise asks for, after the others."""
    end = "    dist.destroy_process_group()"
    assert code.count(end) == 1
    line = '    show("1/N, factor 1 on layer", reduced(x, rank, 1 / N, lambda model: [model.layer]))'
    return code.replace(end, f"{line}\n{end}")


def with_one_pass_a_round(code: str) -> str:
    """The program of chapter 165 with what its exercise asks for in front: local steps in proportion to the samples."""
    step, start = "        for _ in range(steps):\n            inner.zero_grad()", "    runs = {\n"
    assert (code.count(step), code.count(start)) == (1, 1)
    proportional = code[code.index("def local(") : code.index("def check(")].replace("def local(", "def passes(")
    proportional = proportional.replace("range(steps)", "range(steps * len(y))")
    compared = """    one = synchronous(x, y, 1, lr=1e-4)
    for means in (local, passes):
        for weight_of in (alike, weight_by_samples):
            cosine = torch.cosine_similarity(means(x, y, 1, 1, weight_of, lr=1e-4), one, dim=0)
            if rank == 0:
                print(means.__name__, weight_of.__name__, cosine.item())
"""
    return code.replace("def check(", f"{proportional}def check(").replace(start, f"{compared}{start}")


def with_a_penalty(code: str) -> str:
    """The program of chapter 95 as its exercise asks: a constant third term that every microstep adds."""
    changes = {
        "COEFFICIENTS = torch.tensor([1, 0.1]": "COEFFICIENTS = torch.tensor([1, 0.1, 0.5]",
        "torch.ones(2, dtype": "torch.ones(3, dtype",
        "for t in range(2)]).backward()": "for t in range(2)] + [torch.tensor(6.0)]).backward()",
        "COEFFICIENTS * sums / COUNTS.sum((1, 2))": (
            "COEFFICIENTS * torch.cat([sums / COUNTS.sum((1, 2)), torch.tensor([6.0])])"
        ),
    }
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def counts_of_scale(ran: Ran) -> dict[str, list[float]]:
    """By the name of the norm: how often each rank says that `scale` was counted."""
    found = re.findall(r"^(\d) (\w+) .*'scale': ([\d.]+)", ran.out, re.MULTILINE)
    return {name: [float(count) for _, other, count in sorted(found) if other == name] for _, name, _ in found}


def test_chapter_70_a_check_of_ones_own_passes_the_right_rule_and_fails_the_wrong_one(ran: dict[str, Ran]) -> None:
    assert ran["own"].error == ""
    assert [line.split("replicas")[0].strip() for line in ran["own"].out.splitlines()] == ["P*S/N", "mean of means"]


def test_chapter_70_calling_the_wrapped_module_is_found_by_comparing_replicas(ran: dict[str, Ran]) -> None:
    assert "AssertionError" in ran["bypassed"].error
    apart, off = numbers(ran["bypassed"].out.split("replicas")[1])
    assert off == pytest.approx(apart / 2, rel=0.01)
    for lang in ("en", "zh"):
        assert f"{apart:.4f}" in chapter(lang, "70-two-process-verification")


def test_chapter_95_what_arrives_of_each_term_is_its_multiple(ran: dict[str, Ran]) -> None:
    assert ran["terms"].error == ""
    shares = {line.split()[0]: numbers(line.partition(" ")[2]) for line in ran["terms"].out.splitlines()}
    assert shares["own_count"] == [1, 1]
    assert shares["first_count"] == [1, 0.3125]
    assert shares["without_P"] == [0.5, 0.5]
    assert all(abs(share - 1) > 1e-3 for share in shares["cell_mean"])


def test_chapter_95_a_penalty_of_every_microstep_arrives_as_often_as_there_are_microsteps(ran: dict[str, Ran]) -> None:
    assert ran["penalised"].error == ""
    (line,) = [line for line in ran["penalised"].out.splitlines() if line.startswith("own_count")]
    assert numbers(line.partition(" ")[2]) == [1, 1, 2]


def test_chapter_95_three_sums_give_the_mean_and_variance_of_all_ranks() -> None:
    together, averaged = output(programs("95-more-than-one-term")[0]).splitlines()
    assert numbers(together) == pytest.approx([4, 7.5])
    assert numbers(averaged) == pytest.approx([3.75, 25 / 12])


def test_chapter_110_an_empty_window_moves_what_the_chapter_says() -> None:
    (code,) = programs("110-update-and-stability")
    lines = {line[:10].strip(): line[10:] for line in output(code).splitlines()}
    assert set(re.findall(r"\d\.\de[-+]\d+", lines["skip"] + lines["None"])) == {"0.0e+00"}
    assert lines["zero loss"] == lines["clamped"] != lines["skip"]
    assert lines["0/0"].count("nan") == 3


def test_chapter_120_a_complete_step_agrees_with_its_reference_and_skips_on_all_ranks(ran: dict[str, Ran]) -> None:
    assert ran["loop"].error == ""
    assert ran["loop"].out.count("then skipped at scale 32768") == 2


def test_chapter_120_unscaling_below_the_clip_loses_the_movement(ran: dict[str, Ran]) -> None:
    reported = re.search(r"^AssertionError: (\S+)$", ran["late"].error, re.MULTILINE)
    assert reported
    assert f"{float(reported[1]):.3f}" in ("0.063", "0.028"), "by the rank that fails first"


def test_chapter_120_each_order_hands_the_optimizer_what_the_panel_says() -> None:
    _, orders = programs("120-mixed-precision-order")
    lines = output(orders).splitlines()
    shown = [numbers(line.split("[")[1]) for line in lines[:4]]
    assert shown[0] == pytest.approx([0, 1, 65536], abs=2e-6)
    assert shown[1] == pytest.approx([0, 2**-16, 65536], abs=1e-6)
    assert shown[2] == pytest.approx([-0.948683, 0.316228, 65536], abs=2e-6)
    assert shown[3] == [0, 0, 32768]
    assert [line.split()[1:] for line in lines[4:]] == [
        ["inf", "128.0", "128.0"],
        ["1.52587890625e-05", "0.0", "1.52587890625e-05"],
    ]


def test_chapter_130_a_norm_says_how_often_it_counts_each_parameter(ran: dict[str, Ran]) -> None:
    assert ran["counted"].error == ""
    answers = [line.split(maxsplit=1) for line in ran["counted"].out.splitlines()]
    assert answers[0] == ["this_rank", "{'scale': 1.0, 'body.weight': 0.25}"]
    assert answers[1] == ["every_copy", "{'scale': 4.0, 'body.weight': 1.0}"]
    assert answers[2] == ["by_placement", "{'scale': 1.0, 'body.weight': 1.0}"]
    assert "mixed torch.Tensor and DTensor" in answers[3][1]


def test_chapter_130_both_repairs_count_an_equal_copy_once(ran: dict[str, Ran]) -> None:
    assert counts_of_scale(ran["repairs"]) == {"by_placement": [1] * 4, "every_holder_divides": [1] * 4}


def test_chapter_130_a_drifted_copy_divides_the_ranks_or_hides(ran: dict[str, Ran]) -> None:
    assert counts_of_scale(ran["drifted"]) == {"by_placement": [1, 4, 1, 1], "every_holder_divides": [1.75] * 4}


def ratios(ran: Ran) -> dict[str, dict[str, str]]:
    """By weight and by reduction: what the program of chapter 135 says of its gradient."""
    found = re.findall(r"^(\w+) +(as it is|sum over tp|mean over tp) +(.+)$", ran.out, re.MULTILINE)
    return {name: {way: said for other, way, said in found if other == name} for name, _, _ in found}


AS_IT_IS = {"as it is": "1.0000", "sum over tp": "another direction", "mean over tp": "another direction"}
SUMMED = {"as it is": "another direction", "sum over tp": "1.0000", "mean over tp": "0.5000"}


def test_chapter_135_a_cut_matrix_is_right_as_it_is_and_a_norm_once_it_is_summed(ran: dict[str, Ran]) -> None:
    assert ran["mesh"].error == ""
    assert ratios(ran["mesh"]) == {"norm": SUMMED, "up": AS_IT_IS, "down": AS_IT_IS, "bias": SUMMED}


def test_chapter_135_without_the_backwards_reduction_no_sum_repairs_the_norm(ran: dict[str, Ran]) -> None:
    lost = dict.fromkeys(SUMMED, "another direction")
    assert ratios(ran["mesh_unreduced"]) == {"norm": lost, "up": AS_IT_IS, "down": AS_IT_IS, "bias": SUMMED}


def test_chapter_135_torchs_own_schedule_divides_what_earlier_calls_have_left(ran: dict[str, Ran]) -> None:
    assert ran["pipeline"].error == ""
    weighed = {"the schedule divides": "0.437500", "the loss divides": "1.000000", "both divide": "0.109375"}
    found = re.findall(r"^stage (\d)  (\D+?) +([\d.]+)$", ran["pipeline"].out, re.MULTILINE)
    assert sorted(found) == sorted((stage, *line) for stage in "01" for line in weighed.items())


def test_chapter_140_a_step_of_fsdp2_shows_what_the_tables_say(ran: dict[str, Ran]) -> None:
    assert ran["seen"].error == ""
    lines = ran["seen"].out.splitlines()
    assert [line.split("layer.grad ")[-1] for line in lines[:4]] == ["None", "None", "shard (3, 4)", "None"]
    assert [("head full" in line) for line in lines[:4]] == [False, True, False, False]
    assert lines[4].endswith("0.0")
    shown = [numbers(line.split("[")[1]) for line in lines[5:]]
    assert shown == [[-0.5, -0.5], [0.4, 0.4], [0.2, 0.2], [0.2, 0.4], [0.4, 0.4], [0.4, 0.2]]


def test_chapter_150_three_means_estimate_what_the_panel_says() -> None:
    code, *_ = programs("150-batch-noise")
    lines = output(code.replace("updates=100_000", "updates=20_000")).splitlines()
    for line, sliding in zip(lines[:3], (1.0, 0.8356, 0.7135), strict=True):
        _, first, _, second, _, third, _ = numbers(line)
        assert (first, second, third) == pytest.approx((1.0, sliding, 0.6637), abs=0.05)
    means, counts = (numbers(line)[-1] for line in lines[3:])
    assert means == pytest.approx(1.51, rel=0.15)
    assert counts > 2 * 1.51


def test_chapter_150_a_loader_that_groups_by_length_trains_the_per_sequence_objective() -> None:
    code, *_ = programs("150-batch-noise")
    drawn = "    length, gradient = (x.view(updates, batch) for x in sequences(batch * updates))\n"
    assert code.count(drawn) == 1
    grouped = (
        "    length, gradient = sequences(batch * updates)\n"
        "    order = length.argsort()\n"
        "    length, gradient = (x[order].view(updates, batch) for x in (length, gradient))\n"
    )
    lines = output(code.replace(drawn, grouped)).splitlines()
    for line in lines[:3]:
        _, first, noise, second, same_noise, third, _ = numbers(line)
        assert (first, noise) == (second, same_noise)
        assert (second, third) == pytest.approx((1.0, 0.6637), abs=0.02)
    assert noise == pytest.approx(0.397, abs=0.01), "at the largest batch"
    assert [numbers(line)[-1] for line in lines[3:]] == pytest.approx([1.37, 1.37], abs=0.05)


def test_chapter_155_only_rules_that_count_the_whole_update_survive_the_split() -> None:
    (code,) = programs("155-reinforcement-learning")
    step = 'reduced(RULES["token mean, whole update"], batch)'
    assert code.count(step) == 1
    ran = output(code).splitlines()
    whole = [numbers(line)[-1] for line in ran if "whole update" in line]
    by_cell = [numbers(line)[-1] for line in ran if "own cell" in line]
    assert len(whole) == len(by_cell) == 4
    assert max(whole) < 1e-14
    assert 0.25 < min(by_cell) <= max(by_cell) < 0.9
    assert [numbers(line)[-1] for line in ran if "reward" in line] == pytest.approx([0.30, 0.55], abs=0.005)
    other = output(code.replace(step, step.replace("whole update", "own cell"))).splitlines()
    assert [numbers(line)[-1] for line in other if "reward" in line] == pytest.approx([0.30, 0.45], abs=0.005)


def test_chapter_160_the_loss_counts_its_own_labels() -> None:
    code, *_ = programs("160-finetuning-budget")
    lines = output(code).splitlines()
    assert lines[0].startswith("[[1424, 810], [329, 120]]  N 2683 ")
    assert all(line.split("loss / ln V: ")[1].startswith("1.0000 by N") for line in lines)
    assert [line.count("1.0000") for line in lines] == [1, 2, 1, 1], "one row has no prompt"


def test_chapter_160_a_label_shifted_twice_is_counted_without_complaint() -> None:
    code, *_ = programs("160-finetuning-budget")
    delivered = "    return pad_sequence([row[:T] for row in labels], batch_first=True, padding_value=-100)\n"
    assert code.count(delivered) == 1
    shifted = delivered.replace("return", "aligned =") + (
        "    return torch.cat([aligned[:, 1:], torch.full((len(rows), 1), -100)], 1)\n"
    )
    lines = output(code.replace(delivered, shifted)).splitlines()
    assert [int(line.split("  N ")[1].split()[0]) for line in lines] == [2682, 1900, 4562, 2472]
    assert all(line.split("loss / ln V: ")[1].startswith("1.0000 by N") for line in lines)


def test_chapter_170_its_questions_answer_for_a_small_training() -> None:
    import torch

    *_, code = programs("170-tiny-language-model")
    names: dict[str, object] = {}
    exec(compile(code, "chapter", "exec"), names)
    lost, floors, resumes = names["lost_in_round_trip"], names["floors"], names["resumes"]
    assert lost(lambda text: text.encode(), lambda data: data.decode(), ["x"]) == []  # type: ignore[operator]
    assert lost(str.split, " ".join, []) != []  # type: ignore[operator]
    assert floors([0, 0, 1], [0], 2) == pytest.approx((math.log(2), -math.log(3 / 5)))  # type: ignore[operator]

    def start() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Generator]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        return model, torch.optim.AdamW(model.parameters()), torch.Generator().manual_seed(1)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, draws: torch.Generator) -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=draws)).square().mean().backward()
        optimizer.step()

    assert resumes(start, step)  # type: ignore[operator]
    for left_out in ("model", "optimizer", "draws"):
        kept = tuple(part for part in ("model", "optimizer", "draws") if part != left_out)
        assert not resumes(start, step, kept), left_out  # type: ignore[operator]


def test_chapter_165_one_local_step_is_the_synchronous_one_and_a_reversed_sign_raises_the_loss(
    ran: dict[str, Ran],
) -> None:
    assert ran["rounds"].error == ""
    lines = re.findall(r"^(.+?) +off by (\S+) +loss (\S+)", ran["rounds"].out, re.MULTILINE)
    off, loss = ({name: float(line[place]) for name, *line in lines} for place in (0, 1))
    assert off.pop("1 step") < 1e-14
    assert min(off.values()) > 0.01
    assert loss["4 steps, outer"] < loss["4 steps"] < 1 < loss["4 steps, sign reversed"]


def test_chapter_165_steps_in_proportion_to_samples_want_a_plain_mean(ran: dict[str, Ran]) -> None:
    found = dict(re.findall(r"^(\w+ \w+) ([\d.]+)$", ran["rounds"].out, re.MULTILINE))
    assert float(found["passes alike"]) > 1 - 1e-6
    assert float(found["local weight_by_samples"]) > 1 - 1e-6
    assert f"{float(found['passes weight_by_samples']):.2f}" == "0.94"
    assert float(found["local alike"]) < 0.99
