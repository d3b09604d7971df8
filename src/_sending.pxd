# Slot of an awaitable that is ready at once, and its counterpart, for _step.pxi.

from cpython.object cimport PyObject, PyTypeObject

cdef extern from *:
    """
    /* The interpreter asks this slot for the value of an awaitable that is ready at once, as for asyncio's
       futures. By __next__ each value would cost a StopIteration. Cython has no name for the slot. */
    #define set_send(type, function) ((type)->tp_as_async->am_send = (sendfunc)(void (*)(void))(function))
    """
    int PyIter_Send(PyObject* steps, PyObject* value, PyObject** result)
    void set_send(PyTypeObject* awaitable, int (*function)(PyObject*, PyObject*, PyObject**) except -1)
