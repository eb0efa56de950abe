from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.config.convert import build, config_hash, to_dict, walk
from cadenza.config.load import load
from cadenza.config.schema import RunConfig
from cadenza.errors import CadenzaError, ConfigError

DEFAULTS: dict[str, Any] = to_dict(build(RunConfig, {"algorithm": {"name": "ppo"}}))
KEYS = [key for key, _, _ in walk(RunConfig, data=DEFAULTS)]
TRICKY = ["1e-4", "nan", "lin_0.1", "lin_", "auto", "ppo", "", " ", "null", "a\nb", "über", "0x10", "solved"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(TRICKY)
    | st.text(max_size=8)
    | st.binary()
)
junk = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
)
places = (
    st.sampled_from(KEYS) | st.text(max_size=10) | st.builds("{}.{}".format, st.sampled_from(KEYS), st.text(max_size=6))
)


def put(data: dict[str, Any], key: str, value: Any) -> None:
    *blocks, leaf = key.split(".")
    for block in blocks:
        if not isinstance(data.get(block), dict):
            data[block] = {}
        data = data[block]
    data[leaf] = value


def refusal(data: Any) -> str | None:
    """The message, or none when the data was taken; anything but a ConfigError escapes."""
    try:
        made = build(RunConfig, data)
    except ConfigError as problem:
        return str(problem)
    assert build(RunConfig, to_dict(made)) == made
    assert config_hash(made)
    return None


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.lists(st.tuples(places, junk), min_size=1, max_size=3))
def test_junk_is_taken_or_refused_in_one_line(changes: list[tuple[str, Any]]) -> None:
    data = deepcopy(DEFAULTS)
    for key, value in changes:
        put(data, key, value)
    message = refusal(data)
    if message is not None:
        assert message.isprintable()
        assert len(message) < 400


@settings(max_examples=50, derandomize=True, deadline=None, database=None)
@given(junk)
def test_junk_in_place_of_the_whole_config(data: Any) -> None:
    message = refusal(data)
    assert message is not None
    assert message.isprintable()


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.sampled_from(["", "+", "++", "~"]), st.sampled_from(KEYS) | st.text(max_size=8), st.text(max_size=10))
def test_junk_on_the_command_line_is_taken_or_refused_in_one_line(prefix: str, key: str, value: str) -> None:
    answer: CadenzaError | None = None
    try:
        load("CartPole-v1:ppo", [f"{prefix}{key}={value}"])
    except CadenzaError as problem:
        answer = problem
    assert answer is None or (answer.exit_code == 2 and str(answer).isprintable()), answer
