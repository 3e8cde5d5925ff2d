"""Writes the chart's dashboards: `PYTHONPATH=operator:charts python -m boards`."""

from pathlib import Path

from boards.grafana import as_json
from boards.job_board import JOB_BOARD
from boards.operator_board import OPERATOR_BOARD

FOLDER = Path(__file__).parents[1] / "rap" / "dashboards"
BOARDS = (JOB_BOARD, OPERATOR_BOARD)

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        (FOLDER / f"{board.uid}.json").write_text(as_json(board))
