"""One rank of a job of `launch`."""

import json

from samestep.experiments.ranks import child
from samestep.experiments.ranks.world import enter, perform


def work(post: child.Post) -> None:
    def tell(what: str, done: float | None) -> None:
        post.say(step=what, done=done)

    job = json.loads((post.folder / "job.json").read_text("utf-8"))
    address = (post.folder / "rendezvous").as_uri()
    world = enter(
        post.rank,
        post.size,
        address,
        post.folder,
        tell,
        backend=job["backend"],
        options=job["options"],
        asked=job["asked"],
    )
    perform(world, job["modules"])
    world.leave()


if __name__ == "__main__":
    child.run(work, heartbeat=True)
