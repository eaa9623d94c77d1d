"""How a server is reached and run; workers started by the server read it from the environment."""

import os
import re
from dataclasses import dataclass

_BASE_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+")
_DISCUSS_URL = re.compile(r"https?://(?:[!#-;=?-\[\]_a-z~]|\{(?:lang|slug|section)\})+")


class SettingsError(ValueError):
    """A setting that cannot be used; says which one and why."""


@dataclass(frozen=True)
class Settings:
    """Raises SettingsError when one of them cannot be used."""

    root_path: str = ""
    reload: bool = False
    base_url: str = ""
    """Scheme and host that absolute addresses begin with, such as https://example.org; empty: those of the request."""
    discuss_url: str = ""
    """Where a section is discussed or corrected, with {lang}, {slug} and {section}; empty: nowhere."""
    ahead: bool = False
    """Whether pages are made as soon as the server listens, before anybody asks, and kept for its next start."""

    def __post_init__(self) -> None:
        if self.base_url and not _BASE_URL.fullmatch(self.base_url):
            rule = "a scheme and a host such as https://example.org, without a path"
            raise SettingsError(f"SAMESTEP_BASE_URL must be {rule}: {self.base_url}")
        if self.discuss_url and not _DISCUSS_URL.fullmatch(self.discuss_url):
            rule = "an address such as https://example.org/new?title={slug}%23{section}, with {lang}, {slug}, {section}"
            raise SettingsError(f"SAMESTEP_DISCUSS_URL must be {rule}: {self.discuss_url}")

    @classmethod
    def from_environment(cls) -> "Settings":
        return cls(
            root_path=os.environ.get("SAMESTEP_ROOT_PATH", ""),
            reload=os.environ.get("SAMESTEP_RELOAD") == "1",
            ahead=os.environ.get("SAMESTEP_AHEAD") == "1",
            base_url=os.environ.get("SAMESTEP_BASE_URL", "").rstrip("/"),
            discuss_url=os.environ.get("SAMESTEP_DISCUSS_URL", ""),
        )

    def to_environment(self) -> None:
        os.environ["SAMESTEP_ROOT_PATH"] = self.root_path
        os.environ["SAMESTEP_RELOAD"] = "1" if self.reload else "0"
        os.environ["SAMESTEP_AHEAD"] = "1" if self.ahead else "0"
        os.environ["SAMESTEP_BASE_URL"] = self.base_url
        os.environ["SAMESTEP_DISCUSS_URL"] = self.discuss_url

    def discuss(self, lang: str, slug: str, section: str) -> str:
        """The address where this section is discussed."""
        address = self.discuss_url
        for name, value in (("lang", lang), ("slug", slug), ("section", section)):
            address = address.replace(f"{{{name}}}", value)
        return address
