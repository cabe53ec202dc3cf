# Attributes of a Python class with slots, read where they lie instead of by their names.

from cpython.object cimport PyObject

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset

cdef extern from "Python.h":
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member


ctypedef struct Slot:
    PyObject* kind          # the class and the name: borrowed, they live as long as the module
    PyObject* name
    Py_ssize_t offset       # in its instances


cdef inline Slot slot_of(type kind, str name):
    cdef Slot slot
    member = kind.__dict__[name]
    if type(member).__name__ != "member_descriptor":
        raise TypeError(f"{kind.__name__}.{name} is no slot")
    slot.kind = <PyObject*> kind
    slot.name = <PyObject*> name
    slot.offset = (<PyMemberDescrObject*> member).d_member.offset
    return slot


cdef inline object read(const Slot* slot, instance):
    cdef PyObject* value
    if type(instance) is <object> slot.kind:
        value = (<PyObject**> (<char*> <PyObject*> instance + slot.offset))[0]
        if value != NULL:       # else it was deleted
            return <object> value
    return getattr(instance, <object> slot.name)
