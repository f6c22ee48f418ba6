"""The documentation page: the OpenAPI document as one HTML page, with nothing fetched from elsewhere."""

from html import escape
from typing import Any

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882;--mark:#2a7f62}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:2rem 1.2rem}
h1{margin:0}h2{margin:2.5rem 0 .5rem;text-transform:capitalize}
details{border:1px solid var(--line);border-radius:6px;margin:.4rem 0}
summary{cursor:pointer;padding:.5rem .8rem;display:flex;gap:.8rem;align-items:baseline;flex-wrap:wrap}
summary b{font:600 12px ui-monospace,monospace;color:#fff;background:var(--mark);border-radius:4px}
summary b{padding:.1rem .4rem;min-width:3.2rem;text-align:center}
summary b.DELETE{background:#b3492d}summary b.GET{background:#2b5f8a}
summary code{font-size:14px}summary span{opacity:.75}
.in{padding:0 .8rem .8rem}table{border-collapse:collapse;width:100%;margin:.3rem 0 1rem}
td,th{border-bottom:1px solid var(--line);padding:.25rem .5rem;text-align:left;vertical-align:top}
pre{background:var(--soft);border-radius:6px;padding:.6rem;overflow:auto}
"""


def page(document: dict[str, Any]) -> str:
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(
                _operation(method.upper(), path, operation, document)
            )
    parts = [f"<h2>{escape(tag.replace('_', ' '))}</h2>{''.join(shown)}" for tag, shown in by_tag.items()]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{escape(info['description'])} "
        "A token goes as user name of HTTP Basic, as Bearer, or by Digest. The same as "
        '<a href="openapi.json">OpenAPI</a>.</p>'
        f"{''.join(parts)}</body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    inner = [f"<p>{escape(operation.get('description', 'For anybody.'))}</p>"]
    if operation["parameters"]:
        rows = "".join(
            f"<tr><td><code>{escape(p['name'])}</code></td><td>{p['in']}</td>"
            f"<td>{escape(p['description'])}</td></tr>"
            for p in operation["parameters"]
        )
        inner.append(f"<table><tr><th>parameter</th><th>in</th><th></th></tr>{rows}</table>")
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        inner.append(f"<h4>Takes {escape(media)}</h4>{_shape(content['schema'], document)}")
    rows = "".join(
        f"<tr><td>{status}</td><td>{escape(response['description'])}{_given(response, document)}</td></tr>"
        for status, response in operation["responses"].items()
    )
    inner.append(f"<h4>Answers</h4><table>{rows}</table>")
    return (
        f'<details id="{operation["operationId"]}"><summary><b class="{method}">{method}</b>'
        f"<code>{escape(path)}</code><span>{escape(operation['summary'])}</span></summary>"
        f'<div class="in">{"".join(inner)}</div></details>'
    )


def _given(response: dict[str, Any], document: dict[str, Any]) -> str:
    contents = response.get("content", {})
    return "".join(
        _shape(content["schema"], document) for media, content in contents.items() if "problem" not in media
    )


def _shape(schema: dict[str, Any], document: dict[str, Any]) -> str:
    """A schema's fields as a table; of a list, its items'."""
    lead = ""
    while True:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        elif schema.get("type") == "array":
            lead, schema = "<p>A list of:</p>", schema["items"]
        elif "anyOf" in schema and any("$ref" in one for one in schema["anyOf"]):
            lead = "<p>One, or a list of them:</p>"
            schema = next(one for one in schema["anyOf"] if "$ref" in one)
        else:
            break
    if not schema.get("properties"):
        return lead + f"<p><code>{escape(_kind(schema))}</code></p>"
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{'' if name in required else ' <i>optional</i>'}</td>"
        f"<td><code>{escape(_kind(field))}</code></td><td>{escape(_what(field))}</td></tr>"
        for name, field in schema["properties"].items()
    )
    return lead + f"<table>{rows}</table>"


def _what(schema: dict[str, Any]) -> str:
    """What it is for, wherever that stands."""
    inner = [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    found = [schema.get("description", ""), *map(_what, inner)]
    return next((text for text in found if text), "")


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"[{_kind(schema.get('items', {}))}]"
    words = [str(schema.get("type", "anything"))]
    for name, sign in (("minimum", "≥"), ("maximum", "≤"), ("pattern", "~"), ("maxLength", "length ≤")):
        if name in schema:
            words.append(f"{sign} {schema[name]}")
    return " ".join(words)
