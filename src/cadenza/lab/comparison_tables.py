"""The tables of a comparison, as text: scores of each series, scores over all environments, settings that differ."""

from __future__ import annotations

from cadenza.base.json_text import dumps
from cadenza.config.table_rules import MARK, TableRule, rule_for
from cadenza.lab.compare import Comparison, Estimate

WIDE = 3  # columns of series, at most, where there are fewer settings
HeadAndRows = tuple[list[str], list[list[str]]]


def score_table(result: Comparison, metric: str) -> HeadAndRows:
    """Return for each series the number of runs, their score, and the probability that it beats the first label.

    The best score is marked where `conf/tables.yaml` says so.
    """
    first, rule = result.labels[0], rule_for(metric)
    head = ["environment", "runs", "seeds", "IQM", "95 % interval", "min", "max", f"P(above {first})"]
    rows = []
    for series in result.series:
        estimate, values = result.estimate(series, metric), result.scores(series, metric)
        if estimate is None:
            rows.append([series.environment, series.label, "0", "-", "", "", "", ""])
            continue
        better = result.improvement(series.label, first, metric, series.environment) if series.label != first else None
        low, high = rule.text(float(values.min())), rule.text(float(values.max()))
        beside = [result.estimate(one, metric) for one in result.series if one.environment == series.environment]
        mark = MARK if rule.is_best(estimate.value, [one.value for one in beside if one is not None]) else ""
        score = [rule.text(estimate.value) + mark, _interval(estimate, rule), low, high, _probability(better)]
        rows.append([series.environment, series.label, str(len(values)), *score])
    return head, rows


def overall_table(result: Comparison) -> HeadAndRows:
    """Return the score of each label over all environments, each of them scaled to its range."""
    metric, first, scaled = result.metrics[0], result.labels[0], TableRule()
    rows = []
    for label in result.labels:
        estimate = result.overall(label, metric)
        better = result.improvement(label, first, metric) if label != first else None
        if estimate is not None:
            rows.append([label, scaled.text(estimate.value), _interval(estimate, scaled), _probability(better)])
    return ["runs", "IQM", "95 % interval", f"P(above {first})"], rows


def settings_table(result: Comparison) -> HeadAndRows:
    """Return the settings that differ between the series, with their values; no rows if there are none.

    A row is a setting, or a series where there are more series than settings.
    """
    differences = result.differences()
    labels = list(next(iter(differences.values()), {}))
    if len(labels) > max(len(differences), WIDE):
        rows = [[label, *(_value(values[label]) for values in differences.values())] for label in labels]
        return ["runs", *differences], rows
    rows = [[key, *(_value(values[label]) for label in labels)] for key, values in differences.items()]
    return ["setting", *labels], rows


def _interval(estimate: Estimate, rule: TableRule) -> str:
    return f"[{rule.text(estimate.low)}, {rule.text(estimate.high)}]"


def _probability(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _value(value: object) -> str:
    return "-" if value is None else dumps(value).strip('"')
