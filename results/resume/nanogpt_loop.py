"""A re-statement of nanoGPT's loop (train.py of karpathy/nanoGPT) in few lines; not its code.

What it keeps: batches at random places of a memmap, drawn from torch's global generator, which is
seeded at the start; an evaluation and a checkpoint every few steps; one file ckpt.pt, overwritten
in place, with model, optimizer, model_args, iter_num, best_val_loss and config; resume if asked to;
with several processes a seed of its own for each, and the evaluation and checkpoint by the first.
It asks for that by itself if ckpt.pt exists, where nanoGPT needs `--init_from=resume`.
"""

from pathlib import Path

import numpy as np
import torch
from shared import (
    BATCH,
    LENGTH,
    SAVE_EVERY,
    SEED,
    Reads,
    examples,
    finish,
    processes,
    rank,
)
from small_model import SmallModel, parameters_of
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

STEPS = 64
BLOCK = LENGTH + 1


def run(folder: Path) -> None:
    """Train to the end, from the checkpoint if there is one."""
    reads = Reads(folder)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    file = folder / "train.bin"
    if rank() == 0 and not file.exists():
        examples()[:, 1:].astype(np.uint16).tofile(file)
    if processes() > 1:
        distributed.init_process_group("gloo")
        distributed.barrier()
    text = np.memmap(file, dtype=np.uint16, mode="r")
    torch.manual_seed(SEED + rank())
    model = SmallModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = 0
    best = 1e9
    if (out / "ckpt.pt").exists():
        saved = torch.load(out / "ckpt.pt", weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["iter_num"]
        best = saved["best_val_loss"]
    wrapped = DistributedDataParallel(model) if processes() > 1 else model

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        places_B = torch.randint(len(text) - BLOCK, (BATCH // processes(),))
        rows = [
            torch.from_numpy(text[place : place + BLOCK].astype(np.int64)) for place in places_B
        ]
        return places_B, torch.stack(rows)

    places_B, bytes_BT = batch()
    while True:
        if rank() == 0 and step % SAVE_EVERY == 0:
            with torch.no_grad():
                model.eval()
                best = min(
                    best, float(torch.stack([model.loss(batch()[1]) for _ in range(4)]).mean())
                )
                model.train()
            if step > 0:
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                saved |= {"model_args": {}, "iter_num": step, "best_val_loss": best, "config": {}}
                torch.save(saved, out / "ckpt.pt")
        reads.note(step + 1, places_B)
        loss = wrapped(bytes_BT)
        places_B, bytes_BT = batch()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step >= STEPS:
            break
    finish(folder, parameters_of(model))
