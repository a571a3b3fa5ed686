"""For the API reference: a doctest in a docstring becomes a code block of its own."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.M | re.S)


class Doctests(griffe.Extension):
    """Puts fences around the doctests of every docstring."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring and "```" not in obj.docstring.value:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)
