"""`python -m rap_operator` is the `rap-operator` command."""

from rap_operator.cli import main

raise SystemExit(main())
