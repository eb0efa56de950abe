"""Only to be found: both packages need it."""
