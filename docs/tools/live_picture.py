"""Picture the live page with three runs on digits: ``python docs/tools/live_picture.py``; it needs Chromium."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import fedpfl

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser  # noqa: E402
from live_parts import served  # noqa: E402

PICTURE = ROOT / "docs" / "pictures" / "live.png"
SETTINGS = {"dataset": "digits", "model": "mlp", "num_clients": 20, "dirichlet_alpha": 0.1, "num_server_rounds": 15}
WIDTH, HEIGHT = 1000, 1530
DRAWN = "document.querySelectorAll('figure svg').length > 4"


def main() -> None:
    """Run a method after its two yardsticks, and save what the page shows of them."""
    with tempfile.TemporaryDirectory() as folder:
        for method in ("local", "fedavg", "fedper"):
            fedpfl.run(method=method, output_dir=folder, run_name=method, workers=0, quiet=True, **SETTINGS)
        with Browser(Path(folder) / "profile") as browser, served(Path(folder)) as page:
            browser.open(page.address("fedper") + "&run=fedavg", width=WIDTH, height=HEIGHT)
            while not browser.evaluate(DRAWN):
                pass
            browser.picture(PICTURE, whole=False)
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
