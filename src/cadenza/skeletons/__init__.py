"""Templates of the files that `cadenza new` writes."""
