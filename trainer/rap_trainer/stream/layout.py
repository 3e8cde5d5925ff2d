"""What producers and readers of a directory of events agree on."""

END_MARKER = "_END"
"""A file of this name: no event file will follow."""
IGNORED_PREFIXES = (".", "_")
"""Names of files and directories that are not events, or not yet."""
IGNORED_SUFFIX = ".tmp"
