"""The program of a rank beside rank 0: makes its runner, then does what it is ordered until there is nothing more."""

from __future__ import annotations

import json
import os
import pickle
import select
import shutil
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

_TO_LEAVE_S = 8.0  # rank 0 kills what has not ended after 10


def main(rank: int, size: int, capacity: int, file: int, news: int, meeting: str) -> int:
    """Return 0 at the end of orders, 1 where something has failed."""
    threading.Thread(target=_leave_with_rank_0, args=(Path(meeting).parent,), daemon=True).start()
    warnings.simplefilter("ignore")  # rank 0 warns of the same

    def tell(what: str | dict[str, str]) -> None:
        os.write(news, f"{json.dumps(what)}\n".encode())

    try:
        orders = sys.stdin.buffer
        argument = pickle.loads(orders.read(int.from_bytes(orders.read(8), "little")))
        import torch

        from nvexplore.backends.ranks import ProcessRanks
        from nvexplore.runner.model_runner import ModelRunner
        from nvexplore.runner.order_channel import OrderChannel
        from nvexplore.runner.orders import Order

        tell("here")
        device = torch.device(argument["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)  # page-locked memory takes a context on the current one
        ranks = ProcessRanks(rank, size, device, Path(meeting))
        runner = ModelRunner(**argument, ranks=ranks, loaded=lambda: tell("loaded"))
        tell("ready")
        channel = OrderChannel(size, capacity, rank=rank, file=file)
        with runner.backend.active():
            while (told := channel.receive(orders)) is not None:
                Order.unpacked(*told, runner.backend.staging).follow(runner.execution)
        ranks.close()
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        tell({"error": f"{type(error).__name__}: {error} ({where})"})
        return 1
    return 0


def _leave_with_rank_0(folder: Path) -> None:
    """Once nobody can give orders any more, this process has little time left, whatever it waits for."""
    end = select.poll()
    end.register(sys.stdin.fileno(), 0)
    while not end.poll():
        pass
    time.sleep(_TO_LEAVE_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    rank, size, capacity, file, news = map(int, sys.argv[1:6])
    code = main(rank, size, capacity, file, news, sys.argv[6])
    shutil.rmtree(Path(sys.argv[6]).parent, ignore_errors=True)  # in case rank 0 was killed
    sys.stderr.flush()
    os._exit(code)  # nothing that is left may wait for another rank
