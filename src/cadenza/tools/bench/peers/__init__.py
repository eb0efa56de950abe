"""One file per contestant, which imports only the standard library and that contestant."""
