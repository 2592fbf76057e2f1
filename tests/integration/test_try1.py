from __future__ import annotations
import pytest, time, threading
from support.worker import Worker
from support.zoo import Zoo, eventually
from django_zklock.testing.ensemble import four_letter
@pytest.mark.parametrize("n",[1,2,3])
def test_x(zoo, tmp_path,n):
    with Worker(zoo, tmp_path, session_timeout=10) as w:
        rs=[w.send("storm","s",150,i*n) for i in range(4)]
        for r in rs: print(w.get(r))
        t=time.monotonic()
        import signal
        w.process.send_signal(signal.SIGTERM)
        port=int(zoo.hosts.split(":")[1])
        last=None
        for _ in range(1200):
            d=four_letter("127.0.0.1",port,"dump")
            s=[l.split()[-1] for l in d.splitlines() if l.strip().startswith("0x")]
            cur=(sorted(set(s)), w.process.poll(), len(w.children()) if w.process.poll() is None else 0)
            if cur!=last: print(f"{time.monotonic()-t:.2f}", cur); last=cur
            if w.process.poll() is not None and time.monotonic()-t>14: break
            time.sleep(0.02)
        print(w.log.read_text()[-1500:])
