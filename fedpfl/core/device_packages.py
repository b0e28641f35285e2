"""The one list of the packages that a worker on a device needs."""

# These packages import neither Flower nor anything else of fedpfl but its version, and run under Python 3.8. A client's
# answer follows from them alone. So app and worker compare a hash of their source. Of the rest, the command line above
# all, each may have another version. pyproject.toml (ruff's target), docs/contributing/architecture.md and tests are
# checked against this list.
DEVICE_PACKAGES = (
    "bench/device", "client", "core", "data", "layers", "methods", "models", "options", "rules", "setup", "training",
)  # fmt: skip
