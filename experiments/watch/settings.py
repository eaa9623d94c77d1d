"""How to watch: all options of the command, checked."""

from dataclasses import dataclass

from samestep.experiments.audit.settings import SettingsError

OBJECTIVES = ("tokens", "sequences", "samples")


@dataclass(frozen=True)
class Settings:
    """`updates` of every optimizer are watched after the first `skip`; `tensors`: the N largest, None for all.

    `timeout`: seconds in which some rank has to begin or end a backward, once there was one. `stop`: end the run when
    all has been seen. `processes`: for a command that is only a Python file.
    """

    updates: int = 2
    skip: int = 0
    objective: str = "tokens"
    eager: bool = False
    tensors: int | None = None
    timeout: float = 120.0
    processes: int = 2
    stop: bool = False

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise SettingsError(f"objective must be one of {', '.join(OBJECTIVES)}, not {self.objective}")
        for name, least in (("updates", 1), ("skip", 0), ("processes", 1)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} must be {least} or more, not {getattr(self, name)}")
        if self.tensors is not None and self.tensors < 1:
            raise SettingsError(f"tensors must be 1 or more, or all, not {self.tensors}")
        if not self.timeout > 0:
            raise SettingsError(f"timeout must be more than 0 seconds, not {self.timeout:g}")
