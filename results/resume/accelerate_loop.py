"""A loop with accelerate, resumed as its guide and its example `checkpointing.py` do.

SEEDABLE=1: with `use_seedable_sampler` and `set_epoch`; else accelerate's default.
"""

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from shared import BATCH, EPOCHS, SAVE_EVERY, SEED, Reads, examples, finish, processes
from small_model import SmallModel, parameters_of
from torch.utils.data import DataLoader

IS_SEEDABLE = os.environ.get("SEEDABLE") == "1"


def run(folder: Path) -> None:
    """Train to the end, from the last checkpoint if there is one."""
    reads = Reads(folder)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    set_seed(SEED)
    loading = DataLoaderConfiguration(use_seedable_sampler=IS_SEEDABLE)
    accelerator = Accelerator(cpu=True, dataloader_config=loading)
    rows = torch.from_numpy(examples())
    loader = DataLoader(rows, batch_size=BATCH // processes(), shuffle=True)
    model = SmallModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = max((int(path.name.removeprefix("step_")) for path in out.glob("step_*")), default=0)
    if step:
        accelerator.load_state(str(out / f"step_{step}"))
    first, skipped = divmod(step, len(loader))
    for epoch in range(first, EPOCHS):
        if IS_SEEDABLE:
            loader.set_epoch(epoch)
        active = loader
        if epoch == first and skipped:
            active = accelerator.skip_first_batches(loader, skipped)
        for example in active:
            reads.note(step + 1, example[:, 0])
            accelerator.backward(model(example[:, 1:]))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % SAVE_EVERY == 0:
                accelerator.save_state(str(out / f"step_{step}"))
    finish(folder, parameters_of(accelerator.unwrap_model(model)))
