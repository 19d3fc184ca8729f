"""What the hooks of an attached job cost, as a ratio: steps of one DDP process with and without them, in turns.

`python -m benchmarks.attach_overhead [--pairs 6] [--steps 150]` prints the medians and the ratio of each pair. In the
agent's place, a thread reads what the client sends, so the cost of sending is part of it.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import resihp_attach
from resihp_attach import place, stuck

_LOOP = """
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=0, world_size=1)
layers = [torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(12)]
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layers = torch.nn.Embedding(256, 128), torch.nn.Sequential(*layers)
    def forward(self, input_ids, attention_mask):
        return self.layers(self.embedding(input_ids))
model = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(0, 256, (4, 64)); mask = torch.ones_like(ids)
times = []
for step in range(int(sys.argv[1])):
    begun = time.perf_counter()
    for micro in range(2):
        model(input_ids=ids, attention_mask=mask).sum().backward()
    optimizer.step(); optimizer.zero_grad()
    times.append(time.perf_counter() - begun)
times = sorted(times[10:])
print(times[len(times) // 2])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = Path(folder) / "a.sock"
        server.bind(str(path))
        server.listen()
        threading.Thread(target=_swallow, args=(server,), daemon=True).start()
        ratios = []
        for pair in range(args.pairs):
            order = (False, True) if pair % 2 else (True, False)
            median_s = {hooked: _run(path, args.steps, hooked=hooked) for hooked in order}
            ratios.append(median_s[True] / median_s[False])
            print(f"off {1e3 * median_s[False]:.2f} ms, on {1e3 * median_s[True]:.2f} ms, ratio {ratios[-1]:.4f}")
    spread = f"{min(ratios):.4f} to {max(ratios):.4f}"
    print(f"median ratio {statistics.median(ratios):.4f} ({spread}, {args.pairs} pairs of {args.steps} steps)")
    return 0


def _swallow(server: socket.socket) -> None:
    while True:
        line, _ = server.accept()
        threading.Thread(target=_drain, args=(line,), daemon=True).start()


def _drain(line: socket.socket) -> None:
    with line:
        while line.recv(1 << 16):
            pass


def _run(path: Path, steps: int, *, hooked: bool) -> float:
    """Median step seconds of one process."""
    env = {
        **os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0",
        "WORLD_SIZE": "1",
    }  # fmt: skip
    if hooked:
        site = str(Path(resihp_attach.__file__).parent / "site")
        env |= {"PYTHONPATH": site, place.SOCKET: str(path), place.JOB: "overhead", stuck.BUFFER: "256"}
    done = subprocess.run(
        [sys.executable, "-c", _LOOP, str(steps)], env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
