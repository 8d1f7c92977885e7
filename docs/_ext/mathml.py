"""Formulas as MathML, which browsers lay out themselves, with a font for those that have none for mathematics."""

import io
from pathlib import Path
from typing import Any

import ziamath
from docutils import nodes
from fontTools import subset
from fontTools.ttLib import TTFont
from latex2mathml.converter import convert

FONT = Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf"
# Of the font: ASCII, Greek, accents, operators, arrows, and the letters that mathematics sets apart.
USED = ((0x20, 0x7F), (0xA0, 0x100), (0x300, 0x400), (0x2000, 0x2070), (0x2100, 0x230C), (0x1D434, 0x1D468))
USED += ((0x1D49C, 0x1D4D0), (0x1D6E2, 0x1D71C))


def font() -> bytes:
    """The part of it that formulas are set in, with the tables by which braces grow."""
    whole = TTFont(FONT)
    options = subset.Options(flavor="woff", layout_features=["ssty"], notdef_outline=True, drop_tables=["DSIG"])
    part = subset.Subsetter(options)
    part.populate(unicodes=[c for r in USED for c in range(*r)])
    part.subset(whole)
    whole.flavor = "woff"
    contents = io.BytesIO()
    whole.save(contents)
    return contents.getvalue()


def inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>\n')
    raise nodes.SkipNode


def write_font(app: Any, error: Exception | None) -> None:
    if error is None:
        (Path(app.outdir) / "_static" / "math.woff").write_bytes(font())


def setup(app: Any) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("build-finished", write_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
