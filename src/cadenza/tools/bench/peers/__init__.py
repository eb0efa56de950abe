"""One contestant, one file, which imports nothing but the standard library and that contestant."""
