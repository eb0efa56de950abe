"""The inspector: a web page, served to this machine only, that shows runs, compares them and replays episodes."""
