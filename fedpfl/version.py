"""The version, where the repository is, and the versions of Flower, which every part of the package can import."""

import re

__version__ = "0.1.0"
# https://github.com/OWNER/NAME; after a change: fedpfl config --update. While it is empty, nothing links to it.
REPOSITORY = ""


def urls() -> dict[str, str]:
    """Return where the project's parts are, by the names that package indexes show; nothing without a repository."""
    if not REPOSITORY:
        return {}
    owner, name = REPOSITORY.rstrip("/").split("/")[-2:]
    return {
        "Homepage": REPOSITORY,
        "Documentation": f"https://{owner.lower()}.github.io/{name}/",
        "Repository": f"{REPOSITORY}.git",
        "Issues": f"{REPOSITORY}/issues",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    }


# The versions of Flower that the library and the strategies take, as in fedpfl's own pyproject.toml; `flwr run .` needs
# the extra simulation. Testbeds use what Flower documents for nobody: these versions, the second one excluded.
FLOWER, SIMULATION = "flwr>=1.22", "flwr[simulation]>=1.22"
FLOWER_OF_TESTBEDS = ((1, 41), (1, 43))


def untested(version: str) -> str:
    """Say that testbeds were not tested with this version of Flower; nothing if they were."""
    first, beyond = FLOWER_OF_TESTBEDS
    if first <= tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < beyond:
        return ""
    tested = f"from {first[0]}.{first[1]} to below {beyond[0]}.{beyond[1]}"
    return f"Flower {version}: `fedpfl up`, `fedpfl node`, fork server and bridge were tested with Flower {tested}"
