"""Helpers for fixes: adding an argument to a call as the code around it is written."""

from __future__ import annotations

import libcst as cst


def add_argument(node: cst.CSTNode, name: str, value: str | cst.BaseExpression) -> cst.Call:
    """A call with one more keyword argument; a trailing comma and line breaks between arguments are kept."""
    call = cst.ensure_type(node, cst.Call)
    new = cst.Arg(
        keyword=cst.Name(name),
        value=cst.parse_expression(value) if isinstance(value, str) else value,
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    old = list(call.args)
    if old:
        last = old[-1].comma
        if isinstance(
            last, cst.Comma
        ):  # a trailing comma: the new argument gets one too, on a line of its own
            between, last = _between(call, last)
            new = new.with_changes(comma=last)
        else:
            between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        new = new.with_changes(whitespace_after_arg=old[-1].whitespace_after_arg)
        old[-1] = old[-1].with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*old, new])


def _between(call: cst.Call, last: cst.Comma) -> tuple[cst.Comma, cst.Comma]:
    """The comma before the new argument, and the trailing one; a comment stays with the argument before."""
    space = call.whitespace_before_args
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")), last
    end = last.whitespace_after
    first_line = cst.TrailingWhitespace()
    if isinstance(end, cst.ParenthesizedWhitespace):
        first_line = end.first_line
        last = last.with_changes(whitespace_after=end.with_changes(first_line=cst.TrailingWhitespace()))
    break_line = cst.ParenthesizedWhitespace(
        first_line=first_line, indent=space.indent, last_line=space.last_line
    )
    return cst.Comma(whitespace_after=break_line), last
