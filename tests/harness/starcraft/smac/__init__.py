"""A stand-in for oxwhirl/smac 1.0: its interface, with a battle of a few lines instead of StarCraft II."""
