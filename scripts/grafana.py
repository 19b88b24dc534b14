"""Grafana dashboards of plots, as the JSON that Grafana imports."""

import dataclasses
import json
from typing import Any, Final

_COLUMNS: Final = 24
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Query = tuple[str, str]
"""PromQL, and the legend of its series."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot. `unit` is one of Grafana's: s, reqps, short, percentunit, bytes."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""


@dataclasses.dataclass(frozen=True)
class Dashboard:
    """`variables` are labels to choose by, and the metric that has their values."""

    name: str
    title: str
    variables: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def panels(self) -> list[Panel]:
        """All of them, in order."""
        return [panel for _, panels in self.rows for panel in panels]


def render(dashboard: Dashboard) -> str:
    """As Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows:
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": []})
        panels[-1]["gridPos"] = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        y += 1
        width = _COLUMNS // (2 if len(row) % 3 else 3)
        columns = _COLUMNS // width
        for index, panel in enumerate(row):
            place = {"x": index % columns * width, "y": y + index // columns * _HEIGHT}
            panels.append(_plot(panel) | {"gridPos": place | {"w": width, "h": _HEIGHT}})
        y += -(-len(row) // columns) * _HEIGHT
    for number, shown in enumerate(panels):
        shown["id"] = number + 1
    made = {
        "uid": f"pagelet-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["pagelet"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_DATASOURCE, *_variables(dashboard)]},
        "panels": panels,
    }
    return json.dumps(made, indent=1) + "\n"


_DATASOURCE: Final = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "hide": 0,
}


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    made = []
    for label, metric in dashboard.variables:
        query = f"label_values({metric}, {label})"
        made.append(
            {
                "name": label,
                "type": "query",
                "datasource": _SOURCE,
                "definition": query,
                "query": {"query": query, "refId": label},
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",  # also series without the label
                "current": {"text": ["All"], "value": ["$__all"]},
            }
        )
    return made


def _plot(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
            }
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }
