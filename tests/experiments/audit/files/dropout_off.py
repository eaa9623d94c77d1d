"""Right: the same model with dropout switched off for the audit."""

import dropout
from accumulate import step
from tokens import data, weights


def build():
    model, optimizer = dropout.build()
    model.dropout.p = 0.0
    return model, optimizer
