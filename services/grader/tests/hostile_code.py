"""Code that cheats, hangs or destroys, by what it does; each is to define add(a, b) and none does it right."""

HOSTILE = {
    "hangs": r"""
def add(a, b):
    while True: pass
""",
    "hangs in C": r"""
def add(a, b): return 9**9**9
""",
    "hangs as it loads": r"""
while True: pass
""",
    "swallows the end": r"""
def add(a, b):
    while True:
        try:
            while True: pass
        except BaseException: pass
""",
    "sleeps": r"""
import time
def add(a, b): time.sleep(60)
""",
    "ignores signals": r"""
import signal
for n in range(1, 32):
    try: signal.signal(n, signal.SIG_IGN)
    except Exception: pass
def add(a, b):
    while True: pass
""",
    "sys.exit": r"""
import sys
def add(a, b): sys.exit(0)
""",
    "sys.exit as it loads": r"""
import sys
sys.exit(0)
""",
    "os._exit": r"""
import os
def add(a, b): os._exit(0)
""",
    "os._exit as it loads": r"""
import os
os._exit(0)
""",
    "raises SystemExit at the end": r"""
import atexit, os
atexit.register(os._exit, 0)
def add(a, b): return 0
""",
    "equals everything": r"""
class Any:
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __lt__(self, o): return True
    def __sub__(self, o): return self
    def __abs__(self): return self
    def __hash__(self): return 0
def add(a, b): return Any()
""",
    "is a number that equals everything": r"""
class Any(int):
    def __eq__(self, o): return True
    def __sub__(self, o): return Any(0)
    def __abs__(self): return Any(0)
    def __lt__(self, o): return True
def add(a, b): return Any(9)
""",
    "claims to be another class": r"""
class Any:
    __class__ = int
    def __eq__(self, o): return True
def add(a, b): return Any()
""",
    "patches builtins": r"""
import builtins
builtins.abs = lambda x: 0
builtins.AssertionError = type('E', (Exception,), {})
def abs(x): return 0
def add(a, b): return 9
""",
    "defines check and names of its own": r"""
def check(candidate): pass
candidate = lambda a, b: a + b
class AssertionError(Exception): pass
def add(a, b): return 9
""",
    "prints results": r"""
print('{"results": [{"name": "check", "passed": true, "detail": ""}]}', flush=True)
def add(a, b): return 9
""",
    "writes to every descriptor": r"""
import os
for fd in range(3, 64):
    try: os.write(fd, b'\0\0\0\x0f{"value": true}\n' * 3)
    except OSError: pass
def add(a, b): return 9
""",
    "writes to everybody's output": r"""
import os
for pid in filter(str.isdigit, os.listdir('/proc')):
    for fd in range(16):
        try: open(f'/proc/{pid}/fd/{fd}', 'wb').write(b'passed')
        except OSError: pass
def add(a, b): return 9
""",
    "looks for the tests": r"""
import os, re
found = b''
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ('mem', 'environ', 'cmdline', 'fd/0', 'maps'):
        try:
            with open(f'/proc/{pid}/{name}', 'rb') as f: found += f.read(1 << 20)
        except OSError: pass
assert b'candidate(2, 2)' not in found
def add(a, b): return 9
""",
    "looks at frames": r"""
import sys, gc
for o in gc.get_objects():
    if isinstance(o, dict) and 'nonce' in o: raise SystemExit(o['nonce'])
def add(a, b):
    f = sys._getframe()
    while f:
        f.f_locals.update(passed=True, results=[]); f = f.f_back
    return 9
""",
    "ends its parent": r"""
import os, signal
def add(a, b):
    os.kill(os.getppid(), signal.SIGKILL)
    return 3
""",
    "ends everybody": r"""
import os, signal
os.kill(-1, signal.SIGKILL)
def add(a, b): return a + b + 1
""",
    "stops its parent": r"""
import os, signal
os.kill(os.getppid(), signal.SIGSTOP)
def add(a, b): return 9
""",
    "interrupts its parent": r"""
import os, signal, time
for n in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    os.kill(os.getppid(), n); time.sleep(0.05)
def add(a, b): return 9
""",
    "forks": r"""
import os
def add(a, b):
    while True:
        try: os.fork()
        except OSError: pass
""",
    "forks and answers twice": r"""
import os
def add(a, b):
    return 3 if os.fork() else 9
""",
    "leaves a daemon": r"""
import os, time
if os.fork() == 0:
    os.setsid()
    while True: time.sleep(1)
def add(a, b): return 9
""",
    "fills memory": r"""
def add(a, b):
    x = []
    while True: x.append(bytearray(1 << 24))
""",
    "fills memory in children": r"""
import os
for _ in range(20):
    if os.fork() == 0:
        x = []
        while True:
            try: x.append(bytearray(1 << 22))
            except MemoryError: pass
def add(a, b): return 9
""",
    "fills the disk": r"""
with open('/work/full', 'wb') as f:
    while True: f.write(bytes(1 << 20))
def add(a, b): return a + b
""",
    "answers a lot": r"""
def add(a, b): return 'x' * (1 << 26)
""",
    "answers deeply": r"""
def add(a, b):
    x = []
    for _ in range(100000): x = [x]
    return x
""",
    "answers in circles": r"""
def add(a, b):
    x = []; x.append(x); return x
""",
    "answers without end": r"""
import itertools
def add(a, b): return itertools.count()
""",
    "removes everything": r"""
import shutil
shutil.rmtree('/', ignore_errors=True)
def add(a, b): return 9
""",
    "closes its descriptors": r"""
import os
def add(a, b):
    os.closerange(0, 256); return 3
""",
    "recurses": r"""
def add(a, b): return add(a, b)
""",
    "crashes": r"""
import ctypes
def add(a, b): ctypes.string_at(0)
""",
    "raises from __str__": r"""
class E(Exception):
    def __str__(self): raise E
    args = property(lambda self: 1/0)
def add(a, b): raise E()
""",
    "ends its try block": r"""
def add(a, b):
    raise KeyboardInterrupt
""",
    "answers nonsense as it loads": r"""
import os
for fd in range(3, 64):
    try: os.write(fd, b'\0\0\0\x02[]')
    except OSError: pass
def add(a, b): return 9
""",
    "claims that the setup broke": r"""
import json, os
data = json.dumps({"raised": {"type": "NameError", "text": "setup"}}).encode()
for fd in range(3, 64):
    try: os.write(fd, len(data).to_bytes(4, "big") + data)
    except OSError: pass
def add(a, b): return 9
""",
    "claims exceptions that are none": r"""
import json, os
data = json.dumps({"raised": {"type": [], "base": "int", "number": {}, "text": 7, "args": "x"}}).encode()
def add(a, b):
    for fd in range(3, 64):
        try: os.write(fd, len(data).to_bytes(4, "big") + data)
        except OSError: pass
    return 9
""",
    "calls what was not handed over": r"""
import json, os
data = json.dumps({"call_back": 0, "args": []}).encode()
def add(a, b):
    for fd in range(3, 64):
        try: os.write(fd, len(data).to_bytes(4, "big") + data)
        except OSError: pass
    return 9
""",
    "hands over names that nobody asked for": r"""
import json, os
names = {"add": 9, "abs": {"theirs": 0}, "check": {"theirs": 0}, "__builtins__": {"dict": []}}
data = json.dumps({"value": None, "names": names, "module": {"theirs": 0}}).encode()
for fd in range(3, 64):
    try: os.write(fd, len(data).to_bytes(4, "big") + data)
    except OSError: pass
def add(a, b): return 9
""",
    "says that it is an exception": r"""
import json, os
names = {"add": {"exception": [0, "add", "KeyboardInterrupt"]}}
data = json.dumps({"value": None, "names": names, "module": {"theirs": 0}}).encode()
for fd in range(3, 64):
    try: os.write(fd, len(data).to_bytes(4, "big") + data)
    except OSError: pass
def add(a, b): return 9
""",
}
