"""The docstrings of types and of their fields, for the CRD's descriptions and the documentation."""

import ast
import functools
import inspect
import textwrap

from pagelet.protocol.inference_service.parts import Part


@functools.cache
def field_descriptions(part: type[Part]) -> dict[str, str]:
    """The string under each field of a class, by the field's Python name.

    Python keeps only the class's own docstring at run time, so these are read from its source.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
    [definition] = tree.body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(after.value.value).split())
    return found


def class_description(part: type[Part]) -> str:
    """A class's docstring in one line."""
    return " ".join((inspect.getdoc(part) or "").split())
