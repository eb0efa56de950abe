"""The inspector: a web page on this machine alone, to look at runs, compare them and see their episodes again."""
