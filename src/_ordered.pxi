# Messages of an ordered consumer on their way to the user; a part of _fastframes.pyx.

@cython.final
cdef class OrderedQueue:
    """Hands out the messages of one queue after the other in order, and is an asynchronous iterator over them.

    Invariant: `sequence` and `expected` move with each message handed out, and no message is handed out whose delivery
    is not `expected`. A message that is taken from the queue without being handed out is a gap in the deliveries.
    """

    cdef object wait
    cdef MessageQueue queue     # of the current consumer, or None
    cdef public int64_t expected
    cdef public int64_t sequence
    cdef public bint is_held

    def __init__(self, wait):
        self.wait = wait
        self.queue = None
        self.expected = 1
        self.sequence = 0
        self.is_held = False

    def switch(self, MessageQueue queue):
        """Hand out the messages of another queue from now on, or none; the next delivery is the first one."""
        self.queue, self.expected = queue, 1

    def __bool__(self):
        cdef int64_t sequence
        return self.gives(&sequence)

    cdef inline bint gives(self, int64_t* sequence) except -1:
        """Return true if a message can be handed out at once, and its stream sequence in `sequence`."""
        cdef Numbers numbers
        cdef MessageQueue queue = self.queue
        if queue is None or self.is_held or queue.head == len(queue.items):
            return False
        if not numbers_of(<Delivered?>queue.items[queue.head], &numbers):
            return False
        sequence[0] = numbers.sequence
        return numbers.delivery == self.expected

    def pop(self):
        """Hand out the next message."""
        return self.take()

    cdef object take(self):
        cdef int64_t sequence
        cdef MessageQueue queue = self.queue
        if not self.gives(&sequence):
            raise IndexError("no message is next")
        message = queue.take()  # the owner, called if the queue is low, may switch
        if self.queue is queue:
            self.expected += 1
        self.sequence = sequence
        return message

    def __aiter__(self):
        return self

    def __anext__(self):
        cdef _Step step = _Step.__new__(_Step)
        step.source = self
        return step
