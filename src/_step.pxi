# Awaitable of the next item of an asynchronous iterator. The including module defines, for its iterator:
# item_is_ready(), take_item(), and wait_for_item(), which returns the coroutine that waits for the item.

@cython.final
@cython.freelist(8)
cdef class _Step:
    """Awaitable of the next item, and a coroutine, so that asyncio.create_task() takes it as it is.

    If the item is there, it is the result of the first step. Otherwise the steps are those of `waiting`: anext() with a
    default asks for them again whenever it is resumed. A task sends to this object without a call of `__await__`.
    """

    cdef object source
    cdef object waiting
    cdef bint is_ready

    def __await__(self):
        if self.waiting is None:
            if item_is_ready(self.source):
                self.is_ready = True
                return self
            self.waiting = wait_for_item(self.source).__await__()
        return self.waiting

    def __iter__(self):
        return self

    def __next__(self):
        # Called only under tracing: otherwise the interpreter calls send_to_step().
        raise StopIteration(take_item(self.source))

    def send(self, value):
        steps = self.__await__()
        if steps is self:
            raise StopIteration(take_item(self.source))
        return steps.send(value)

    def throw(self, error):
        if self.waiting is None:
            raise error
        return self.waiting.throw(error)

    def close(self):
        if self.waiting is not None:
            self.waiting.close()


cdef int send_to_step(PyObject* step, PyObject* value, PyObject** result) except -1:
    # 0 is PYGEN_RETURN, -1 is PYGEN_ERROR, 1 is PYGEN_NEXT. A result is a new reference.
    result[0] = NULL
    if not (<_Step>step).is_ready:
        steps = (<_Step>step).__await__()
        if steps is not <_Step>step:
            return PyIter_Send(<PyObject*>steps, value, result)
    item = take_item((<_Step>step).source)
    Py_INCREF(item)
    result[0] = <PyObject*>item
    return 0


set_send(<PyTypeObject*>_Step, send_to_step)
