"""What weight does a real framework's update give every token? Two processes run its own training loop, and are read.

    python -m experiments run conformance [--framework NAME] [--scenario A] [--version transformers==4.50.3]

Set-up. For every framework that is installed, two Gloo processes on this machine run its training step on a model whose
gradient reveals the coefficient of every token (`reader`), in situations that tell reductions apart (`scenarios`).

Reference. The mean over all valid tokens of the window, wherever they are: every token 1/N.

What is compared. The coefficients with the reference, and with what the setting is expected to do; where the reader
finds an update that no re-weighting of tokens explains, it says so. `classifier` gives the rule a name, and says which
other rules would look the same. A framework that is not installed is not measured, and never counts as good.

    frameworks/     one adapter each: its settings, what is expected of them, how one update is made
    adapter         what an adapter is; `child` runs it in one rank; `pairs` starts, bounds and repeats the two ranks
    releases        other versions of a framework, beside the installed one
    verdicts, rows  from measurements to rows; `lab` puts all of them together
"""

from samestep.app.evidence.bags import Text

QUESTION: Text = {
    "zh": "真实框架的一次更新，究竟给每个 token 多大的系数？",
    "en": "Which coefficient does every token really get in an update of a real framework?",
}
PROCESSES = 2
ALONE = True
LAUNCHER = "samestep.experiments.conformance.lab"
