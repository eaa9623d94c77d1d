"""One way to look at a training step while it runs, whoever asks: nothing here knows of a command, a file or a report.

    patches      replaced attributes that can be put back; what happens once a module has been imported
    sites        the line of the reader's script that is being executed
    graph        the autograd graph of a backward: names, children, what lies between root and model
    losses       from nodes of token losses to the weight of every token
    terms        the scalars whose sum is differentiated
    sketches     a linear sketch of a tensor, additive over its shards
    placement    which part of which copy of a tensor a rank holds
    parameters   the parameters that optimizers step, each with a hook on its gradient before any reduction
    backwards    every outermost backward as one value: losses, terms, contributions
    steps        zeroing, clipping, unscaling, stepping
    alive        what was made before we began to look
    features     what cannot be seen this way, recognised before any number is given
    listener     who is told

Nothing changes what is computed: no loss is replaced, no collective issued, no random number drawn from a generator
that is not ours. A fault of a tap is kept by the listener and never raised in the reader's script.
"""
