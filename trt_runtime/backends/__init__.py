"""One module a backend, all with the interface of :mod:`trt_runtime.backends.interface`."""
