"""`cadenza algorithms`."""

from __future__ import annotations

from cadenza.cli.output import Json, print_json, print_table, say


def algorithms(json: Json = False) -> None:
    """List the algorithms: the VARIANT of a spec ENV:VARIANT.

    Example: cadenza algorithms --json
    """
    from cadenza.config import registry

    broken = registry.load_algorithms()
    entries = [{"name": entry.name, "summary": entry.summary} for entry in registry.ALGORITHMS.values()]
    if json:
        print_json({"algorithms": entries})
    else:
        print_table(("name", "summary"), [(entry["name"], entry["summary"]) for entry in entries])
    for problem in broken.values():
        say(f"note: {problem}", err=True)
