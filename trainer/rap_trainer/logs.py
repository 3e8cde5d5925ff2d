"""What a person reads on stderr: our own words from INFO on, the libraries' from WARNING on, less their known noise."""

from __future__ import annotations

import logging
import warnings

NOISY_LIBRARIES = ("torchrec", "torch.fx", "torch.distributed", "fbgemm_gpu")


_handler = logging.StreamHandler()  # stderr; one for the process, so that a forked rank only changes its name


def begin_logging(name: str) -> None:
    """Sends log records of this process to stderr, each with the process's `name` before it."""
    root = logging.getLogger()
    _handler.setFormatter(logging.Formatter(f"{name}: %(levelname)s: %(message)s"))
    _handler.addFilter(_is_news)
    if _handler not in root.handlers:
        root.addHandler(_handler)
    logging.getLogger("rap_trainer").setLevel(logging.INFO)
    for library in NOISY_LIBRARIES:
        logging.getLogger(library).setLevel(logging.ERROR)
    for module in ("torch", "torchrec", "fbgemm_gpu"):
        warnings.filterwarnings("ignore", module=rf"{module}(\..*)?")
    # raised at our line, about what TorchRec 1.6 itself hands out
    warnings.filterwarnings("ignore", message="Please use DTensor instead", category=FutureWarning)


def _is_news(record: logging.LogRecord) -> bool:
    """FBGEMM 1.6 warns ten times at its import that it does not know its own version."""
    return "_fbgemm_torch_compat_table" not in str(record.msg)
