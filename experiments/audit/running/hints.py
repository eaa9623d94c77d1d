"""What may help when a file cannot be run under the audit's conditions. Imports no torch."""

import re

from samestep.experiments.audit.settings import Settings

TYPES = re.compile(r"same dtype|scalar type|dtype|Float and Double|float != double|double != float", re.IGNORECASE)
SIZES = re.compile(
    r"EnforceNotMet|SIGABRT|size of tensor|sizes? of|size mismatch|invalid for input of size|must match|shapes? |"
    r"\.shape|\.size\(|len\(|same size|different sizes|expected .* elements",
    re.IGNORECASE,
)
DTYPE = (
    "hint: the audit runs the model in float64, and a tensor in the step has a type of its own. --dtype float32 audits "
    "in float32; or make that tensor with dtype=x.dtype."
)
PLAN = (
    "hint: under the plan “{plan}” microbatches have different numbers of samples, so that no wrong weighting can "
    "hide. If the step needs equal sizes (an all_gather of equal shapes, an assertion), --plan contiguous deals the "
    "samples out evenly: with a number of them that is divisible by processes × microbatches."
)
WHOLE = (
    "hint: the reference is step() with one process and one microbatch, the whole batch. Where the step asks for "
    "another size, give the file a reference(ctx, model, optimizer, data) of its own."
)


def hint(settings: Settings, doing: str, *texts: str) -> str:
    """One hint for what was said, or ""."""
    text = "\n".join(texts)
    if settings.dtype == "float64" and TYPES.search(text):
        return DTYPE
    plan = re.search(r"plan ([\w-]+)", doing)
    if plan and plan[1] != "contiguous" and SIZES.search(text):
        return PLAN.format(plan=plan[1])
    if "reference" in doing and re.search(r"AssertionError", text) and SIZES.search(text):
        return WHOLE
    return ""
