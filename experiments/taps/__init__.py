"""One way to look at a training step while it runs, for `watch` and for `audit`: nothing here knows of either.

    patches      replaced attributes that can be put back; what happens once a module has been imported
    engine       `torch.autograd.backward` and `.grad`, wrapped
    moments      zeroing, clipping, scaling, stepping: the calls between two backwards, wrapped
    collectives  how many this process has issued
    parameters   the parameters that optimizers step, each with a hook on its gradient before any reduction
    graph        the autograd graph of a backward: names, children, what lies between root and model
    sites        the line of the reader's script that is being executed
    alive        what was made before we began to look

The rest is how a run is read whose numbers cannot be kept, by linear sketches:

    normalised   log-probabilities made by hand
    losses       from nodes of token losses to the weight of every token;  tokens: what is known of them
    calls        where losses are called
    terms        the scalars whose sum is differentiated
    sketches     a linear sketch of a tensor, additive over its shards
    placement    which part of which copy of a tensor a rank holds
    backwards    every outermost backward as one value: losses, terms, contributions
    steps        sketches of the gradients at the moments of a step
    features     what cannot be seen this way, recognised before any number is given
    listener     who is told

Nothing changes what is computed: no loss is replaced, no collective issued, no random number drawn from a generator
that is not ours. A fault of a tap that reads numbers is kept by the listener and never raised in the reader's script.
"""
