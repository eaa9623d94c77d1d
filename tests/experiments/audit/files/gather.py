"""All-gathers of rows that differ in number: every rank adds its own rows to a table of zeros."""

import torch
import torch.distributed as dist


class GatherRows(torch.autograd.Function):
    """With a gradient: backward adds up, for each row, the gradients of all ranks that used it."""

    @staticmethod
    def forward(context, rows, first, total):
        context.own = slice(first, first + len(rows))
        return gather_detached(rows, first, total)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient[context.own], None, None


def gather_detached(rows, first, total):
    """Without a gradient, as dist.all_gather does it."""
    table = rows.new_zeros(total, rows.shape[1])
    table[first : first + len(rows)] = rows.detach()
    dist.all_reduce(table)
    return table
