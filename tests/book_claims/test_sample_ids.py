"""A log that would notice a repeated sample: chapter 50."""

from hashlib import blake2b

from torch.utils.data import DistributedSampler

SAMPLES, RANKS = 5, 2


def hashed(identity: int) -> int:
    return int.from_bytes(blake2b(str(identity).encode(), digest_size=8).digest())


def test_a_sum_of_ids_misses_the_repeated_first_sample_and_a_count_or_a_sum_of_hashes_does_not() -> None:
    dealt = [
        i
        for rank in range(RANKS)
        for i in DistributedSampler(range(SAMPLES), RANKS, rank, shuffle=False)  # type: ignore[arg-type, var-annotated]
    ]
    once = list(range(SAMPLES))
    assert sorted(dealt) == [0, *once]
    assert sum(dealt) == sum(once)
    assert len(dealt) != len(once)
    assert sum(map(hashed, dealt)) % 2**64 != sum(map(hashed, once)) % 2**64
