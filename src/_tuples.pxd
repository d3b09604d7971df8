# New tuples of a subclass, with empty places: tuple.__new__ would copy another tuple.

cdef extern from *:
    """
    static inline PyObject* new_tuple(PyTypeObject* type, Py_ssize_t n) {
        PyObject* made = type->tp_alloc(type, n);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made) ((PyTupleObject*)made)->ob_hash = -1;  /* 3.14 keeps the hash: it is not known yet */
    #endif
        return made;
    }
    """
    object new_tuple(type cls, Py_ssize_t n)
