"""Changing the plan of a running attempt: watch its file, prepare beside training, switch all ranks at one step."""
