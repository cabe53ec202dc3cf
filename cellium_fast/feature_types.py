"""The packed records that functions of users read, as types of Numba.

A value of such a type is the address of a record. Reading an attribute loads the field and widens
it, so that arithmetic is that of Python's numbers: whole numbers of every width are ``int64``,
flags are ``boolean``, the others ``float64``.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
)
from xxhash import xxh3_64_hexdigest

from cellium_fast import _records


class RecordType(types.Type):
    """The address of a record of a NumPy dtype.

    Code in Numba's cache is found by the types of its arguments. So their names tell all that the
    code depends on and that is not in the user's file: the layout, how this package compiles, and
    what `depends` stands for.
    """

    def __init__(self, called: str, layout: np.dtype[Any], depends: str = "") -> None:
        self.called = called
        self.layout = layout
        all_of_it = f"{layout.fields!r} {COMPILER} {depends}"
        super().__init__(f"cellium_fast.{called}({xxh3_64_hexdigest(all_of_it.encode())})")


# A digest of what makes the package compile the same source to something else.
COMPILER = xxh3_64_hexdigest(b"".join(
    Path(__file__).with_name(name).read_bytes()
    for name in ("feature_types.py", "python_arithmetic.py")
))

FEATURES = RecordType("features", _records.FEATURES)
OUTCOME = RecordType("outcome", _records.ROUND_OUTCOME)


@register_model(RecordType)
class _Address(models.OpaqueModel):
    """A pointer."""


def _field_type(layout: np.dtype[Any]) -> types.Type:
    if layout.shape:
        return types.UniTuple(_field_type(layout.base), layout.shape[0])
    return {"f": types.float64, "b": types.boolean}.get(layout.kind, types.int64)


@infer_getattr
class _Attributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(  # type: ignore[override]
        self, record: RecordType, name: str
    ) -> types.Type:
        names = record.layout.names or ()
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypingError(f"there is no {record.called}.{name}{hint}")
        return _field_type(record.layout.fields[name][0])   # type: ignore[index]


@lower_getattr_generic(RecordType)
def _load_field(
    context: Any, builder: ir.IRBuilder, record: RecordType, address: ir.Value, name: str
) -> ir.Value:
    layout, offset = record.layout.fields[name][:2]         # type: ignore[index]
    if not layout.shape:
        return _load(builder, address, layout, offset)
    items = [
        _load(builder, address, layout.base, offset + place * layout.base.itemsize)
        for place in range(layout.shape[0])
    ]
    return context.make_tuple(builder, _field_type(layout), items)


def _load(
    builder: ir.IRBuilder, address: ir.Value, layout: np.dtype[Any], offset: int
) -> ir.Value:
    if layout.kind == "f":
        stored: ir.Type = {8: ir.DoubleType(), 4: ir.FloatType()}[layout.itemsize]
    else:
        stored = ir.IntType(8 * layout.itemsize)
    place = cgutils.pointer_add(builder, address, offset, stored.as_pointer())
    # Records are packed as C has them, and NumPy's alignment is that of C.
    value = builder.load(place)
    if layout.kind == "f":
        return builder.fpext(value, ir.DoubleType()) if layout.itemsize == 4 else value
    if layout.kind == "b":
        return builder.trunc(value, ir.IntType(1))
    widen = builder.sext if layout.kind == "i" else builder.zext
    return widen(value, ir.IntType(64))
