"""A balancer in front of a lock coordinator, as clients see it when it does not keep them with one coordinator."""

import functools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc

SERVICE = "/zklock.v1.LockCoordinator/"


class Balancer(grpc.GenericRpcHandler):
    """Pass requests for locks on, and refuse the others, as without the lease; or lose answers to `KeepAlive`."""

    def __init__(self, address, *, failures=0, silent=False):
        self.calls = Counter()  # by the name of the method
        self._failures = failures
        self._silent = silent
        self._coordinator = address
        self._channel = grpc.insecure_channel(address)
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def service(self, handler_call_details):
        method = handler_call_details.method.removeprefix(SERVICE)
        self.calls[method] += 1
        if method == "KeepAlive":
            return grpc.stream_stream_rpc_method_handler(_lose_answers if self._silent else self._misdirect)
        if method == "RecordLock" or self._silent:
            return grpc.unary_unary_rpc_method_handler(functools.partial(self._pass_on, method))
        return grpc.unary_unary_rpc_method_handler(self._misdirect)

    def _pass_on(self, method, request, context):
        if self.calls["RecordLock"] <= self._failures:
            context.abort(grpc.StatusCode.CANCELLED, "")
        passed_on = self._channel.unary_unary(SERVICE + method)
        call = passed_on.future(request, timeout=context.time_remaining())
        context.add_callback(call.cancel)
        try:
            response = call.result()
        except grpc.FutureCancelledError:
            context.abort(grpc.StatusCode.CANCELLED, "")
        return response

    def _misdirect(self, requests, context):
        context.set_trailing_metadata((("zklock-code", "lease-elsewhere"), ("zklock-address", self._coordinator)))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the lease is from another coordinator")

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *error):
        self._server.stop(grace=None).wait()
        self._channel.close()


def _lose_answers(requests, context):
    for _ in requests:
        yield from ()
