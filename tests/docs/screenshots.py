"""Pictures of what a user sees, taken by headless Chromium of pages that real runs left: `make screenshots`.

The training report is the one of `make demo-cluster`, the boards are those that `make boards` drew. Not here: making either.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 240
PAGES = {
    "report.png": (ROOT / ".demo" / "cluster" / "checkpoints" / "report.html", (1200, 1500), "make demo-cluster"),
    "rap-job.png": (IMAGES / "rap-job.svg", None, "make boards"),
    "rap-operator.png": (IMAGES / "rap-operator.svg", None, "make boards"),
}
"""By picture: the page, its size in pixels (None: the drawing's own), and what makes it."""


def size_of(drawing: str) -> tuple[int, int]:
    """Width and height that an SVG says it has."""
    found = re.search(r'width="(\d+)" height="(\d+)"', drawing)
    assert found is not None
    return int(found[1]), int(found[2])


def shoot(page: Path, picture: Path, size: tuple[int, int]) -> None:
    """Draws a page. Raises SystemExit where no browser is, RuntimeError with its words if it fails."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"screenshots: none of {', '.join(BROWSERS)} is installed")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / page.name
        copy.write_text(page.read_text().replace(f"{ROOT}/", ""))  # where the checkout lies is nobody's business
        command = [
            *(browser, *options, f"--user-data-dir={folder}/profile", f"--window-size={size[0]},{size[1]}"),
            *(f"--screenshot={picture}", copy.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode or not picture.exists():
        raise RuntimeError(done.stderr)


def main() -> int:
    """Takes all pictures whose pages are there; 1 if one is not."""
    missing = [f"{page}: {make} makes it" for page, _, make in PAGES.values() if not page.exists()]
    for name, (page, size, _) in PAGES.items():
        if page.exists():
            shoot(page, IMAGES / name, size or size_of(page.read_text()))
            print(f"docs/images/{name}", flush=True)
    for line in missing:
        print(f"screenshots: no {line}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
